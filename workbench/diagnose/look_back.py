"""The findings of any run from its directory alone: what was kept, else worked out again."""

from __future__ import annotations

from typing import Any

from workbench.diagnose.diagnoser import Diagnoser, read_findings
from workbench.diagnose.facts import Facts
from workbench.diagnose.finding import Finding
from workbench.observe.events import MetricStream, StepRow
from workbench.observe.findings import kept_findings
from workbench.store.files import LineReader, read_json
from workbench.store.layout import RunPaths

_LOOKS = 400  # over the whole run
_LEAST_ROWS = 16  # between two looks


def diagnose(paths: RunPaths) -> list[Finding]:
    """Findings of a run, living or ended, worst first."""
    if kept_findings(paths) is None:
        return work_out(paths)
    return read_findings(paths)


def work_out(paths: RunPaths) -> list[Finding]:
    """Let the rules look at a recorded run as if it ran again; nothing is written.

    What only a living run tells (stacks, process states) stays unknown.
    """
    run, end = read_json(paths.run), read_json(paths.exit) or {}
    if run is None:
        return []
    rows = MetricStream(paths, int(run.get("processes") or 1)).read(final=True)
    diagnoser = Diagnoser(paths, run, keep=False)
    samples = _samples(paths)
    begun = float(run.get("created_at") or 0.0)
    size = max(_LEAST_ROWS, len(rows) // _LOOKS)
    for at in range(0, len(rows), size):
        block = rows[at : at + size]
        now = max(block[-1].time, begun)
        while samples and samples[-1]["time"] <= now:
            diagnoser.sample(samples.pop())
        diagnoser.rows(block)
        diagnoser.look(_facts(run, begun, now, block))
    while samples:
        diagnoser.sample(samples.pop())
    return diagnoser.end(str(end.get("outcome")), end.get("finding"))


def _facts(run: dict[str, Any], begun: float, now: float, block: list[StepRow]) -> Facts:
    """The run as it was at `now`, by the recorded clock."""
    seen = max(row.ranks for row in block)
    return Facts(
        phase="running",
        elapsed_seconds=now - begun,
        started_at=begun,
        world_size=seen if seen == run.get("processes") else None,
        monotonic=now,
        time=now,
    )


def _samples(paths: RunPaths) -> list[Any]:
    """Hardware samples, latest first."""
    reader, found = LineReader(paths.system), list[Any]()
    while lines := reader.read():
        found += [line for line in lines if isinstance(line.get("time"), int | float)]
    found.sort(key=lambda line: line["time"], reverse=True)
    return found
