"""The findings of any run from its directory alone: what was kept, else worked out again."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
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
from workbench.store.schema import SystemLine
from workbench.store.secrets import hide_known
from workbench.store.status import read_status

_LOOKS = 400  # over the whole run
_LIVE_SECONDS = 1.0  # between two looks of a supervisor
_MOST_ROWS = 4096  # at one look


def diagnose(paths: RunPaths) -> list[Finding]:
    """Findings of a run, living or ended, worst first."""
    recorded = read_findings(paths)
    findings = _without_secrets(diagnose_offline(paths)) if recorded is None else recorded
    lost = unsupervised(paths)
    return findings if lost is None else [lost, *findings]


def _without_secrets(findings: list[Finding]) -> list[Finding]:
    """They quote logs and exceptions; findings that a supervisor wrote went through the same."""
    return [
        replace(
            finding, **{name: hide_known(getattr(finding, name)) for name in ("cause", "evidence")}
        )
        for finding in findings
    ]


def diagnose_offline(paths: RunPaths) -> list[Finding]:
    """Let the rules look at a recorded run as if it ran again; nothing is written.

    What only a living run tells (stacks, process states) stays unknown.
    """
    findings: list[Finding] = []
    for moment in replayed(paths):
        findings = moment.findings
    return findings


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """One look of the rules at a recorded run."""

    time: float
    """Unix seconds on the recorded clock."""
    elapsed_seconds: float
    """Since the run was started."""
    rows: Sequence[StepRow]
    """Steps since the look before."""
    samples: Sequence[tuple[int, SystemLine]]
    """Hardware samples since the look before, each with its machine."""
    findings: list[Finding]
    """All findings so far, worst first."""
    ended: bool = False
    """Whether the recording ends here."""


def replayed(paths: RunPaths, *, until: int | None = None) -> Iterator[Moment]:
    """The looks at a recorded run: one a second of it, as live, and at most 400 of a long one.

    `until`: stop at this step; what the end told stays unknown then. None = to the end.
    """
    run, end = read_run(paths), read_json(paths.exit) or {}
    if run is None:
        return
    diagnoser = Diagnoser(paths, run, keep=False)
    samples, begun = _Samples(paths, run.nodes), run.created_at
    rows = recorded_rows(paths, rank_count(paths, run.processes))
    if until is not None:
        rows = takewhile(lambda row: row.step <= until, rows)
    now = begun
    for block in _blocks(rows, _seconds_between_looks(paths, begun)):
        now = max(block[-1].time, begun)
        measured = list(samples.until(now))
        for node, sample in measured:
            diagnoser.sample(sample, node)
        diagnoser.rows(block)
        findings = diagnoser.look(_facts(run, begun, now, block))
        yield Moment(
            time=now, elapsed_seconds=now - begun, rows=block, samples=measured, findings=findings
        )
    if until is None:
        measured = list(samples.until(math.inf))
        for node, sample in measured:
            diagnoser.sample(sample, node)
        findings = diagnoser.end(str(end.get("outcome")), Finding.read(end.get("finding")))
        elapsed = now - begun
        yield Moment(
            time=now,
            elapsed_seconds=elapsed,
            rows=(),
            samples=measured,
            findings=findings,
            ended=True,
        )


def _blocks(rows: Iterable[StepRow], seconds: float) -> Iterator[list[StepRow]]:
    """The rows between two looks, in their order; all that there are at the end."""
    block: list[StepRow] = []
    for row in rows:
        block.append(row)
        if row.time - block[0].time >= seconds or len(block) >= _MOST_ROWS:
            yield block
            block = []
    if block:
        yield block


def _seconds_between_looks(paths: RunPaths, begun: float) -> float:
    last = last_rows(paths.rank_metrics(0))
    ended = last[-1].get("time") if last else None
    length = ended - begun if isinstance(ended, int | float) else 0.0
    return max(_LIVE_SECONDS, length / _LOOKS)


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
    """Hardware samples of all machines in the order of their times, one chunk of each in memory."""

    def __init__(self, paths: RunPaths, nodes: int) -> None:
        files = ((node, LineReader(paths.node_system(node))) for node in range(nodes))
        self._lines = heapq.merge(
            *(self._read(*pair) for pair in files), key=lambda pair: pair[1]["time"]
        )
        self._next: Any = next(self._lines, None)

    @staticmethod
    def _read(node: int, reader: LineReader) -> Iterator[tuple[int, Any]]:
        while lines := reader.read():
            yield from ((node, line) for line in lines if isinstance(line.get("time"), int | float))

    def until(self, moment: float) -> Iterator[tuple[int, Any]]:
        """Those up to `moment`, once."""
        while self._next is not None and self._next[1]["time"] <= moment:
            yield self._next
            self._next = next(self._lines, None)


def unsupervised(paths: RunPaths) -> Finding | None:
    """What every face reports such a run, derived when it is read: no one is there to write it."""
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
