"""Faults of one rank, in every strategy and phase: does the diagnosis name the rank and the phase?

    python -m tests.diagnose.grid [--cells 36] [--page tests/diagnose/README.md] [--keep FILE]

Real runs on warm ranks, two at a time. The cells are a pairwise selection of strategy x phase x ranks
x slow rank x size of the delay; every strategy also runs healthy. When something was said first is
read from the recording, by replay.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import importlib.metadata
import itertools
import os
import platform
import random
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import workbench as wb
from tests.diagnose import recordings
from tests.diagnose.links import can_slow, links
from tests.diagnose.record import record
from workbench.diagnose.offline import replayed
from workbench.observe.arrival_window import ArrivalWindow, combined, read_window
from workbench.store.files import LineReader
from workbench.store.findings import Finding
from workbench.store.layout import RunPaths

SCRIPT = Path(__file__).parent.parent / "scripts" / "grid_cell.py"
PAGE = Path(__file__).parent / "README.md"
STRATEGIES = ("ddp", "fsdp", "zero2", "zero3", "tp", "pp", "cp")
PHASES = ("input", "forward", "backward", "optimizer", "checkpoint", "host")
DELAYS = (0.15, 0.5, 3.0)
WORK = 0.12
STEPS = 36
_LOST = frozenset({"straggler", "input-bound", "imbalanced-work", "communication-bound", "hang"})
SAID = {"host": "paused", "quota": "paused"}
OWN = frozenset({"ddp", "tp", "pp", "cp"})  # started as DDP; the script does the rest


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One run."""

    strategy: str
    """Of `STRATEGIES`."""
    ranks: int
    """2 or 4."""
    phase: str = "none"
    """Where the slow rank is slow; none = a healthy run."""
    rank: int = 0
    """The slow one."""
    delay: float = 0.0
    """Share of a healthy step."""

    @property
    def name(self) -> str:
        """For files."""
        return f"{self.strategy}-{self.ranks}-{self.phase}-rank{self.rank}-{100 * self.delay:.0f}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What was said of a cell."""

    cell: Cell
    """Which."""
    outcome: str
    """How the run ended."""
    named: int | None
    """Step at which the slow rank was named; None = it was not."""
    phase: str | None
    """The phase that was told of it."""
    wrong: tuple[str, ...]
    """Findings on time lost that are not about the slow rank."""
    lost_share: float | None
    """The price that was told."""
    step_seconds: float | None
    """What a step took in fact."""
    queued: float | None
    """Share of it for which a rank waited for a core; the rank that waited most."""
    load: float
    """Of the host over the last minute of the run: processes that compute or want to."""


QUOTAS = tuple(
    Cell(strategy=strategy, ranks=ranks, phase="quota", rank=rank, delay=delay)
    for strategy, ranks, rank, delay in (
        *(("ddp", 2, 1, 3.0), ("fsdp", 4, 2, 3.0), ("zero2", 2, 0, 3.0), ("tp", 2, 1, 3.0)),
    )
)
"""Ranks whose cgroup has a quota, so that what they compute takes as much longer."""

LINKS = tuple(
    Cell(strategy=strategy, ranks=ranks, phase="link", rank=rank, delay=delay)
    for strategy, ranks, rank, delay in (
        *(("ddp", 2, 1, 3.0), ("ddp", 4, 2, 1.0), ("fsdp", 4, 2, 3.0), ("zero2", 2, 0, 3.0)),
    )
)
"""Ranks whose link takes as much of a step for the gradients once; no rank is slow."""
_GRADIENT_BYTES = 4 * 132_352  # of the script's model


GROUPS = next(
    one for one in map(Path, ("/sys/fs/cgroup/cpu", "/sys/fs/cgroup", "/")) if one.exists()
)


def can_limit() -> bool:
    """Whether cgroups can be made here."""
    return GROUPS.name != "" and os.access(GROUPS, os.W_OK)


def cells(count: int, seed: int = 1) -> list[Cell]:
    """Healthy runs of every strategy, then faults that cover all pairs of values soonest."""
    healthy = [
        Cell(strategy=one, ranks=ranks) for one, ranks in zip(STRATEGIES, itertools.cycle((2, 4)))
    ]
    possible = [
        Cell(strategy=strategy, phase=phase, ranks=ranks, rank=rank, delay=delay)
        for strategy, phase, ranks, delay in itertools.product(STRATEGIES, PHASES, (2, 4), DELAYS)
        for rank in (0, 1, 3)
        if rank < ranks
    ]
    random.Random(seed).shuffle(possible)
    seen: set[tuple[str, Any, str, Any]] = set()
    chosen: list[Cell] = []
    while len(chosen) < count - len(healthy):
        best = max(possible, key=lambda one: len(_pairs(one) - seen))
        possible.remove(best)
        seen |= _pairs(best)
        chosen.append(best)
    return [*healthy, *chosen]


def _pairs(cell: Cell) -> set[tuple[str, Any, str, Any]]:
    values = [("strategy", cell.strategy), ("phase", cell.phase), ("ranks", cell.ranks),
              ("rank", cell.rank), ("delay", cell.delay)]  # fmt: skip
    return {(*a, *b) for a, b in itertools.combinations(values, 2)}


def run(cell: Cell, store: Path) -> wb.Run:
    """Launch the cell and wait for its end."""
    lag = cell.delay * WORK
    words = ["--strategy", cell.strategy, "--phase", cell.phase, "--rank", str(cell.rank)]
    words += ["--lag", f"{lag:.4f}", "--work", str(WORK), "--steps", str(STEPS)]
    strategy = "ddp" if cell.strategy in OWN else cell.strategy
    slowed: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    if cell.phase == "link":
        name = f"wb{LINKS.index(cell)}{os.getpid() % 10_000}"
        slowed = links(name, cell.ranks, cell.rank, _GRADIENT_BYTES / lag)
        words += ["--link", name]
    with slowed:
        started = wb.launch(
            SCRIPT, words, cpu=True, store=store, warm=True, processes=cell.ranks,
            strategy=strategy, name=cell.name,
        )  # fmt: skip
        started.wait(timeout=300)
    return started


def judge(cell: Cell, finished: wb.Run) -> Result:
    """What was said live, and when by replay."""
    window = _window(Path(finished.directory))
    said = lost_time(finished.findings())
    hits = [one for one in said if cell.phase != "none" and right(cell, one)]
    named = next(
        (
            max((row.step for row in moment.rows), default=STEPS)
            for moment in replayed(RunPaths(Path(finished.directory)))
            if any(right(cell, one) for one in moment.findings)
        ),
        STEPS,
    )
    return Result(
        cell=cell,
        outcome=finished.status.outcome or "n/a",
        named=named if hits else None,
        phase=hits[0].phase if hits else None,
        wrong=tuple(sorted({_told(one) for one in said if one not in hits})),
        lost_share=hits[0].lost_share if hits else None,
        step_seconds=window.step_seconds if window else None,
        queued=_queued(window) if window else None,
        load=os.getloadavg()[0],
    )


def _window(directory: Path) -> ArrivalWindow | None:
    lines = LineReader(RunPaths(directory).arrivals).read()
    return combined(window for line in lines if (window := read_window(line)) is not None)


def _queued(window: ArrivalWindow) -> float:
    return max(one.queued for one in window.ranks.values()) / window.step_seconds


def lost_time(findings: Iterable[Finding]) -> list[Finding]:
    """Those on time that the ranks lose, and that a quota takes from them."""
    return [one for one in findings if one.kind in _LOST or _held(one)]


def _held(finding: Finding) -> bool:
    return finding.kind == "host-contention" and finding.phase == "paused"


def right(cell: Cell, finding: Finding) -> bool:
    """Whether it is about the slow rank, and sends no one to the data loader for another phase.

    A slow link is no rank's: the exchange is what takes the time.
    """
    if cell.phase == "link":
        return finding.kind == "communication-bound"
    loader = finding.kind == "input-bound" and cell.phase not in {"input", "host"}
    held = cell.phase == "quota" and _held(finding)
    return (finding.kind in _LOST or held) and finding.rank == cell.rank and not loader


def _told(finding: Finding) -> str:
    return finding.kind if finding.rank is None else f"{finding.kind} rank {finding.rank}"


def page(results: list[Result]) -> str:
    """The table, with what it adds up to."""
    faults = [one for one in results if one.cell.phase != "none"]
    healthy = [one for one in results if one.cell.phase == "none"]
    named = [one for one in faults if one.named is not None]
    wrong = [one for one in results if one.wrong]
    precision = len(named) / max(1, len(named) + sum(len(one.wrong) for one in results))
    told = [SAID.get(one.cell.phase, one.cell.phase) == one.phase for one in named]
    steps = sorted(one.named for one in named if one.named)
    versions = f"torch {importlib.metadata.version('torch')}, Python {platform.python_version()}"
    today = f"{dt.datetime.now(tz=dt.UTC):%Y-%m-%d}"
    share, found = len(named) / max(1, len(faults)), sum(bool(one.wrong) for one in healthy)
    middle, most = (steps[len(steps) // 2], steps[-1]) if steps else ("n/a", "n/a")
    lines = [
        "# Slow ranks: what the diagnosis says",
        "",
        f"{today}, {versions}, gloo on {platform.machine()}: {STEPS} steps of {1e3 * WORK:.0f} ms.",
        "`make diagnose-grid` renews this page.",
        "",
        f"- recall: {len(named)} of {len(faults)} slow ranks named ({share:.0%})",
        *(f"  - of {size:.0%} of a step: {_recall(faults, size)}" for size in DELAYS),
        f"- precision: {precision:.0%} of what was said of lost time is right",
        f"- phase: right in {sum(told)} of {len(told)}",
        f"- steps to name: median {middle}, at most {most}",
        f"- wrong advice: {len(wrong)} runs; findings on {len(healthy)} healthy runs: {found}",
        "",
        "A checkpoint is saved every second step. A delay is a share of the step that was asked for;",
        "contention makes the real step longer, and the delay a smaller share of it. The load is the",
        f"host's, which has {os.cpu_count()} cores; the queue is the share of the real step for which a rank",
        "waited for a core.",
        "",
        "| strategy | ranks | slow in | rank | delay | step | load | queue | named | told | price | wrong |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    return "\n".join([*lines, *(_row(one) for one in results)]) + "\n"


def _recall(faults: list[Result], size: float) -> str:
    some = [one for one in faults if one.cell.delay == size]
    return f"{sum(one.named is not None for one in some)} of {len(some)}"


def _row(one: Result) -> str:
    cell, fault = one.cell, one.cell.phase != "none"
    price = "" if one.lost_share is None else f"{one.lost_share:.0%}"
    missing = "" if one.outcome == "succeeded" else f" ({one.outcome})"
    values = (
        *(cell.strategy, cell.ranks, cell.phase if fault else "healthy"),
        *((cell.rank, f"{cell.delay:.0%}") if fault else ("", "")),
        "" if one.step_seconds is None else f"{1e3 * one.step_seconds:.0f} ms",
        f"{one.load:.0f}",
        "" if one.queued is None else f"{one.queued:.0%}",
        missing or (one.named or "**no**" if fault else ""),
        *(one.phase or "", price, ", ".join(one.wrong)),
    )
    return f"| {' | '.join(str(value) for value in values)} |"


def results(chosen: list[Cell], store: Path) -> Iterator[tuple[Result, wb.Run]]:
    """Each cell's, two runs at a time."""

    def one(cell: Cell) -> tuple[Result, wb.Run]:
        finished = run(cell, store)
        return judge(cell, finished), finished

    with ThreadPoolExecutor(2) as pool:
        yield from pool.map(one, chosen)


def main() -> None:
    """Run the grid and write its page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", type=int, default=36)
    parser.add_argument("--seed", type=int, default=1, help="of the selection")
    parser.add_argument("--only", default="", help="names that contain this")
    parser.add_argument("--page", type=Path, default=PAGE)
    parser.add_argument("--keep", type=Path, help="keep the recordings in this .json.xz")
    options = parser.parse_args()
    all_cells = [*cells(options.cells, options.seed), *(QUOTAS if can_limit() else ())]
    all_cells += LINKS if can_slow() else ()
    chosen = [one for one in all_cells if options.only in one.name]
    found: list[Result] = []
    kept: dict[str, dict[str, str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for result, finished in results(chosen, Path(folder)):
            found.append(result)
            kept[result.cell.name] = record(Path(finished.directory))
            print(_row(result), flush=True)
            options.page.write_text(page(found))  # as far as it came
            if options.keep:
                recordings.save(options.keep, kept)


if __name__ == "__main__":
    main()
