"""The findings of any run from its directory alone: what was kept, else worked out again."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

from workbench.diagnose.diagnoser import Diagnoser
from workbench.diagnose.facts import Facts
from workbench.observe.events import StepRow, last_rows, recorded_rows
from workbench.observe.rank_count import rank_count
from workbench.store.files import LineReader, read_json
from workbench.store.findings import Finding, read_findings
from workbench.store.layout import RunPaths
from workbench.store.record import read_run
from workbench.store.run_record import RunRecord
from workbench.store.secrets import hide_known
from workbench.store.status import read_status

_LOOKS = 400  # over the whole run
_LEAST_ROWS = 16  # between two looks
_TAIL_BYTES = 1 << 16  # what `last_rows` reads


def diagnose(paths: RunPaths) -> list[Finding]:
    """Findings of a run, living or ended, worst first."""
    recorded = read_findings(paths)
    findings = _without_secrets(diagnose_offline(paths)) if recorded is None else recorded
    lost = unsupervised(paths)
    return findings if lost is None else [lost, *findings]


def _without_secrets(findings: list[Finding]) -> list[Finding]:
    """They quote logs and exceptions; findings that a supervisor wrote went through the same."""
    return [
        replace(one, **{name: hide_known(getattr(one, name)) for name in ("cause", "evidence")})
        for one in findings
    ]


def diagnose_offline(paths: RunPaths) -> list[Finding]:
    """Let the rules look at a recorded run as if it ran again; nothing is written.

    What only a living run tells (stacks, process states) stays unknown.
    """
    run, end = read_run(paths), read_json(paths.exit) or {}
    if run is None:
        return []
    diagnoser = Diagnoser(paths, run, keep=False)
    ranks = rank_count(paths, run.processes)
    samples, begun = _Samples(paths), run.created_at
    rows, size = recorded_rows(paths, ranks), _rows_between_looks(paths)
    while block := list(islice(rows, size)):
        now = max(block[-1].time, begun)
        for sample in samples.until(now):
            diagnoser.sample(sample)
        diagnoser.rows(block)
        diagnoser.look(_facts(run, begun, now, block))
    for sample in samples.until(math.inf):
        diagnoser.sample(sample)
    return diagnoser.end(str(end.get("outcome")), Finding.read(end.get("finding")))


def _rows_between_looks(paths: RunPaths) -> int:
    """So that `_LOOKS` looks fall on the run, by the size of its first metric file."""
    try:
        size = paths.rank_metrics(0).stat().st_size
    except OSError:
        return _LEAST_ROWS
    known = last_rows(paths.rank_metrics(0))
    line = min(size, _TAIL_BYTES) / max(1, len(known))
    return max(_LEAST_ROWS, round(size / line) // _LOOKS)


def _facts(run: RunRecord, begun: float, now: float, block: list[StepRow]) -> Facts:
    """The run as it was at `now`, by the recorded clock."""
    seen = max(row.ranks for row in block)
    return Facts(
        phase="running",
        elapsed_seconds=now - begun,
        started_at=begun,
        world_size=seen if seen == run.processes else None,
        monotonic=now,
        time=now,
    )


class _Samples:
    """Hardware samples in the order in which they were written, one chunk in memory."""

    def __init__(self, paths: RunPaths) -> None:
        self._lines = self._read(LineReader(paths.system))
        self._next: Any = next(self._lines, None)

    @staticmethod
    def _read(reader: LineReader) -> Iterator[Any]:
        while lines := reader.read():
            yield from (line for line in lines if isinstance(line.get("time"), int | float))

    def until(self, moment: float) -> Iterator[Any]:
        """Those up to `moment`, once."""
        while self._next is not None and self._next["time"] <= moment:
            yield self._next
            self._next = next(self._lines, None)


def unsupervised(paths: RunPaths) -> Finding | None:
    """What every face tells of such a run, derived when it is read: nobody is there to write it."""
    status = read_status(paths)
    if status.state != "unsupervised":
        return None
    run, state = paths.directory.name, read_json(paths.state) or {}
    return Finding(
        kind="unsupervised",
        evidence="Its processes live; the supervisor that state.json names does not, nor does its "
        "watcher.",
        cause=(
            "Supervisor and watcher were killed in the same instant, as by the end of a session "
            "or a container. Training continues without restarts, alarms and a recorded end."
        ),
        next=f"Watch it again: workbench adopt {run}, or end it: workbench stop {run}",
        confidence=1.0,
        seen_at=state.get("heartbeat"),
    )
