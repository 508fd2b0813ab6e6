"""view.json with all its keys, and as far as the ranks came where no supervisor writes it any more.

What is read is bounded however long the run is: of each rank its pulse and the end of its metrics.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from statistics import fmean
from typing import Any

from workbench.observe.events import last_rows
from workbench.observe.pulse import read_pulse
from workbench.observe.rank_count import rank_count
from workbench.observe.rewinds import rewind_of
from workbench.store.files import read_json
from workbench.store.layout import RunPaths
from workbench.store.record import read_run
from workbench.store.run_record import RunRecord
from workbench.store.schema import ViewDoc
from workbench.store.status import read_status

_EMPTY_VIEW: dict[str, Any] = {
    "steps": 0,
    "stride": 1,
    "series": {},
    "host": {"series": {}},
    "lines_skipped": 0,
    "ranks": [],
    "devices": [],
    "device_spread": {},
    "findings": [],
    "attempts": [],
    "checkpoints": [],
    "timeline": {"step": [], "ranks": []},
    "peak_memory_bytes": [],
    "logged": {},
}
_TAIL_BYTES = 4096  # of each rank's metric file: its last dozen steps


def current_view(paths: RunPaths) -> dict[str, Any]:
    """See `launch.run.Run.view`."""
    view = dict.fromkeys(ViewDoc.__annotations__) | _EMPTY_VIEW
    return caught_up(paths, view | (read_json(paths.view) or {}), read_status(paths).state)


def caught_up(paths: RunPaths, view: dict[str, Any], state: str) -> dict[str, Any]:
    """`view`, with how far the ranks came since a supervisor wrote it; also where it is lost."""
    if state == "unsupervised":
        return view | latest(paths, view, until=time.time())
    if state == "interrupted" and not paths.exit.exists():
        return view | latest(paths, view)
    if state in {"interrupted", "ended"} and not view.get("written_at"):
        told = latest(paths, view)  # its time leaves no pause between attempts out
        return view | {name: told[name] for name in ("steps", "loss_last") if name in told}
    return view


def latest(
    paths: RunPaths, view: Mapping[str, Any], *, until: float | None = None
) -> dict[str, Any]:
    """What `view` would say of steps, loss_last, time and bill so far; left out = as it says.

    `until`: Unix seconds; None = the last moment at which a rank was seen at work.
    """
    run, document = read_run(paths) or RunRecord(), read_json(paths.state) or {}
    ranks = range(rank_count(paths, run.processes))
    pulses = [read_pulse(paths.rank_pulse(rank)) for rank in ranks]
    losses = [_losses(paths, rank) for rank in ranks]
    values: dict[str, Any] = {}
    if until is None:
        until = max((pulse.time for pulse in pulses if pulse is not None), default=None)
    # From where the view stops: it counts the attempts without the pauses between them.
    since = view.get("written_at") or document.get("started_at") or run.created_at or None
    if until is not None and since is not None:
        before = view.get("elapsed_seconds") or 0.0
        values["elapsed_seconds"] = elapsed = round(before + max(0.0, until - since), 1)
        if (usd := run.usd_of(elapsed)) is not None:
            values["usd_so_far"] = round(usd, 4)
    steps = [pulse.steps for pulse in pulses if pulse is not None]
    if steps := [*steps, *(max(loss) for loss in losses if loss)]:
        values["steps"] = max(steps)
    shared = set(losses[0]).intersection(*losses[1:])
    means = {step: fmean(loss[step] for loss in losses) for step in shared}  # as always
    if finite := [step for step, mean in means.items() if math.isfinite(mean)]:
        values["loss_last"] = means[max(finite)]
    return values


def _losses(paths: RunPaths, rank: int) -> dict[int, float]:
    """Step -> loss, as far as the end of the rank's file tells; no step that is done again."""
    losses = dict[int, float]()
    for row in last_rows(paths.rank_metrics(rank), _TAIL_BYTES):
        if isinstance(row.get("step"), int) and isinstance(row.get("loss"), int | float):
            if rewind_of(row) is not None:
                losses = {step: loss for step, loss in losses.items() if step < row["step"]}
            losses[row["step"]] = float(row["loss"])
    return losses
