"""view.json with all its keys, and as far as the ranks are where no supervisor writes it any more.

What is read is bounded however long the run is: of each rank its pulse and the end of its metrics.
"""

from __future__ import annotations

import time
from statistics import fmean
from typing import Any

from workbench.observe.events import last_rows
from workbench.observe.pulse import read_pulse
from workbench.observe.rank_count import rank_count
from workbench.observe.rewinds import rewind_of
from workbench.store.files import read_json
from workbench.store.layout import RunPaths
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
    "findings": [],
    "attempts": [],
    "checkpoints": [],
    "timeline": {"step": [], "ranks": []},
    "peak_memory_bytes": [],
}
_TAIL_BYTES = 4096  # of each rank's metric file: its last dozen steps


def current_view(paths: RunPaths) -> dict[str, Any]:
    """See `launch.run.Run.view`."""
    view = dict.fromkeys(ViewDoc.__annotations__) | _EMPTY_VIEW
    now = latest(paths) if read_status(paths).state == "unsupervised" else {}
    return view | (read_json(paths.view) or {}) | now


def latest(paths: RunPaths) -> dict[str, Any]:
    """What view.json would say by now of steps, loss_last and elapsed_seconds; left out = n/a.

    Of a run that trains on while its supervisor is gone.
    """
    run, state = read_json(paths.run) or {}, read_json(paths.state) or {}
    ranks = range(rank_count(paths, run))
    pulses = [read_pulse(paths.rank_pulse(rank)) for rank in ranks]
    losses = [_losses(paths, rank) for rank in ranks]
    known: dict[str, Any] = {}
    started = state.get("started_at") or run.get("created_at")
    if started is not None:
        known["elapsed_seconds"] = max(0.0, time.time() - started)
    steps = [pulse.steps for pulse in pulses if pulse is not None]
    if steps := [*steps, *(max(one) for one in losses if one)]:
        known["steps"] = max(steps)
    if shared := set(losses[0]).intersection(*losses[1:]):  # as always: the mean over all ranks
        known["loss_last"] = fmean(one[max(shared)] for one in losses)
    return known


def _losses(paths: RunPaths, rank: int) -> dict[int, float]:
    """Step -> loss, as far as the end of the rank's file tells; no step that is done again."""
    losses = dict[int, float]()
    for row in last_rows(paths.rank_metrics(rank), _TAIL_BYTES):
        if isinstance(row.get("step"), int) and isinstance(row.get("loss"), int | float):
            if rewind_of(row) is not None:
                losses = {step: loss for step, loss in losses.items() if step < row["step"]}
            losses[row["step"]] = float(row["loss"])
    return losses
