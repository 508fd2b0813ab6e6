"""What the rules say of the recorded runs: recall, precision and phase, by the code of today.

    python -m tests.diagnose.score [--rows]

A recorded run is replayed in milliseconds, so the figures do not depend on the machine.
"""

from __future__ import annotations

import argparse
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.diagnose.grid import SAID, Cell, lost_time, right
from tests.diagnose.recordings import FOLDER, load, unpacked
from workbench.diagnose.offline import diagnose_offline
from workbench.store.findings import Finding

FILES = ("chosen", "held_out", "idle", "held_back", "healthy")
_CELL = re.compile(r"(\w+)-(\d)-(\w+)-rank(\d)-(\d+)")
_OBSERVED = frozenset({"host-contention"})  # of the host: no fault of a rank


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What was said of one recorded run."""

    cell: Cell
    """What was done to it; of real scripts nothing."""
    hits: list[Finding]
    """Findings on lost time that are about the slow rank."""
    wrong: list[Finding]
    """Those that are not."""

    @property
    def slow(self) -> bool:
        """Whether a rank was slow."""
        return self.cell.phase != "none"


def recorded() -> dict[str, dict[str, str]]:
    """All recordings, as FILE/NAME."""
    return {
        f"{file}/{name}": files
        for file in FILES
        if (FOLDER / f"{file}.json.xz").exists()
        for name, files in load(FOLDER / f"{file}.json.xz").items()
    }


def cell_of(name: str) -> Cell:
    """What was done to the run of that name."""
    file, _, rest = name.partition("/")
    matched = _CELL.fullmatch(rest)
    if file == "healthy" or matched is None:
        return Cell(strategy=rest, ranks=0)
    strategy, ranks, phase, rank, delay = matched.groups()
    return Cell(
        strategy=strategy, ranks=int(ranks), phase=phase, rank=int(rank), delay=int(delay) / 100
    )


def judged(name: str, files: dict[str, str], folder: Path) -> Judged:
    """Replay the run in `folder` and compare what is said with what was done."""
    cell = cell_of(name)
    found = diagnose_offline(unpacked(folder, files))
    said = [*lost_time(found), *(one for one in found if one.kind in _OBSERVED)]
    hits = [one for one in said if cell.phase != "none" and right(cell, one)]
    wrong = [one for one in said if one not in hits and one.kind not in _OBSERVED]
    return Judged(cell=cell, hits=hits, wrong=wrong)


def score(results: dict[str, Judged], file: str) -> str:
    """One line on the recordings of a file."""
    some = [one for name, one in results.items() if name.startswith(f"{file}/")]
    slow, healthy = [one for one in some if one.slow], [one for one in some if not one.slow]
    named, wrong = [one for one in slow if one.hits], [one for one in some if one.wrong]
    phases = sum(SAID.get(one.cell.phase, one.cell.phase) == one.hits[0].phase for one in named)
    said = len(named) + sum(len(one.wrong) for one in some)
    parts = [f"{file}: {len(some)} runs"]
    if slow:
        parts.append(f"recall {len(named)}/{len(slow)} ({len(named) / len(slow):.0%})")
        parts.append(f"phase right in {phases}/{len(named)}")
    parts.append(f"precision {len(named)}/{said}" if said else "nothing said")
    parts.append(
        f"findings on {sum(bool(one.wrong) for one in healthy)}/{len(healthy)} healthy runs"
    )
    parts.append(f"wrong advice in {len(wrong)} runs")
    return "; ".join(parts)


def main() -> None:
    """Print the score of each file of recordings, and each run with `--rows`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", action="store_true", help="each run, too")
    options = parser.parse_args()
    results: dict[str, Judged] = {}
    for name, files in recorded().items():
        with tempfile.TemporaryDirectory() as folder:
            results[name] = one = judged(name, files, Path(folder) / "run")
        if options.rows:
            said = ", ".join(f"{hit.kind} rank {hit.rank} {hit.phase}" for hit in one.hits)
            wrong = ", ".join(f"WRONG {hit.kind} rank {hit.rank}" for hit in one.wrong)
            print(f"{name:48} {said or ('missed' if one.slow else 'silent')} {wrong}")
    for file in dict.fromkeys(name.partition("/")[0] for name in results):
        print(score(results, file))


if __name__ == "__main__":
    main()
