"""Recorded runs with the moments at which their ranks entered the collectives: rules are tried on
them in milliseconds. Made by ``python -m tests.diagnose.grid --keep FILE``.
"""

from __future__ import annotations

import json
import lzma
from pathlib import Path

from workbench.diagnose.evidence import WARM_UP
from workbench.observe.arrival_calls import read_rank
from workbench.observe.arrivals import join
from workbench.observe.events import recorded_rows
from workbench.store.files import append_line
from workbench.store.layout import RunPaths
from workbench.store.record import read_run

FOLDER = Path(__file__).parent / "recordings"
_SECONDS = 1.0  # between two looks, as live


def load(file: Path) -> dict[str, dict[str, str]]:
    """Name of each cell -> the files of its run."""
    return json.loads(lzma.decompress(file.read_bytes()))


def save(file: Path, runs: dict[str, dict[str, str]]) -> None:
    """Write what `record.record` gave of each run, without what the rules do not read."""
    kept = {
        name: {one: _short(one, text) for one, text in files.items() if one != "arrivals.jsonl"}
        for name, files in runs.items()
    }
    file.write_bytes(lzma.compress(json.dumps(kept, sort_keys=True).encode(), preset=9))


_UNREAD = frozenset({"lr", "memory_bytes", "batch", "grad_norm", "busiest", "cores"})


def _short(name: str, text: str) -> str:
    if not name.endswith(".jsonl"):
        return text
    lines = (json.loads(line) for line in text.splitlines())
    kept = ({key: one for key, one in line.items() if key not in _UNREAD} for line in lines)
    return "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in kept)


def unpacked(folder: Path, files: dict[str, str]) -> RunPaths:
    """The run as a directory, its order of arrival joined by the code of today."""
    paths = RunPaths(folder)
    folder.mkdir(parents=True, exist_ok=True)
    paths.make_folders()
    for name, text in files.items():
        if name != "arrivals.jsonl":
            (folder / name).write_text(text)
    rejoin(paths)
    return paths


def rejoin(paths: RunPaths) -> None:
    """Write arrivals.jsonl from the ranks' own files, in looks a second apart."""
    run = read_run(paths)
    assert run is not None
    told = {rank: read_rank(paths.rank_arrivals(rank)) for rank in range(run.processes)}
    calls = {rank: one[0] for rank, one in told.items()}
    core_times = {rank: one[1] for rank, one in told.items()}
    rows = list(recorded_rows(paths, run.processes))[WARM_UP:]
    joined_to, begun = 0, 0
    for index, row in enumerate(rows):
        if row.time - rows[begun].time < _SECONDS and index + 1 < len(rows):
            continue
        window = join(calls, rows[: index + 1], joined_to, core_times=core_times)
        begun = index
        if window is not None:
            joined_to = window.last
            append_line(paths.arrivals, json.dumps(window.document()).encode())
