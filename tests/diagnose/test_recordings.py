"""Recorded faults of every phase and strategy, and healthy runs, all on a host without a free core.

The bounds of the rules were chosen on ``chosen``; ``held_out`` was recorded and looked at afterwards.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.diagnose.grid import Cell, lost_time, right
from tests.diagnose.recordings import FOLDER, load, unpacked
from workbench.diagnose.offline import diagnose_offline

RUNS = {
    f"{file}/{name}": files
    for file in ("chosen", "held_out")
    for name, files in load(FOLDER / f"{file}.json.xz").items()
}
MISSED = {
    "chosen/pp-4-host-rank0-50",  # it is stopped while it waits for the other stages
    "chosen/tp-4-backward-rank3-15",
    "held_out/fsdp-2-backward-rank1-15",
    "held_out/pp-4-backward-rank0-300",  # this stage had no backward pass, so no delay
    "held_out/pp-4-input-rank1-15",
    "held_out/tp-2-host-rank1-15",
    "held_out/tp-4-checkpoint-rank3-15",
    "held_out/zero3-2-backward-rank0-15",
}
"""Delays that the contention hides, and those that cost nothing."""


def cell_of(name: str) -> Cell:
    matched = re.fullmatch(r"\w+/(\w+)-(\d)-(\w+)-rank(\d)-(\d+)", name)
    assert matched is not None, name
    strategy, ranks, phase, rank, delay = matched.groups()
    return Cell(
        strategy=strategy, ranks=int(ranks), phase=phase, rank=int(rank), delay=int(delay) / 100
    )


@pytest.mark.parametrize("name", sorted(RUNS))
def test_a_recorded_run_is_told_as_it_was(tmp_path: Path, name: str) -> None:
    cell = cell_of(name)
    said = lost_time(diagnose_offline(unpacked(tmp_path / "run", RUNS[name])))
    slow = cell.phase != "none"
    assert [one for one in said if not (slow and right(cell, one))] == []
    assert bool(said) == (slow and name not in MISSED)
