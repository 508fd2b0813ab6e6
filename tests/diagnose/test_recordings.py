"""Recorded faults of every phase and strategy, and healthy runs.

The bounds of the rules were chosen on ``chosen``; ``held_out`` was recorded and looked at afterwards,
both on a host without a free core; ``idle`` later, on one with nothing else to do.
``healthy`` has real scripts on a busy host, of which earlier rules said what is not so.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.diagnose.score import judged, recorded, score

RUNS = recorded()
MISSED = {
    "chosen/pp-4-host-rank0-50",  # it is stopped while it waits for the other stages
    "chosen/pp-4-checkpoint-rank3-15",
    "chosen/tp-4-backward-rank3-15",
    "held_out/ddp-2-forward-rank0-15",  # the other rank is later: it waits longer for a core
    "held_out/fsdp-2-backward-rank1-15",
    "held_out/pp-4-backward-rank0-300",  # this stage had no backward pass, so no delay
    "held_out/pp-4-input-rank1-15",
    "held_out/tp-2-host-rank1-15",
    "held_out/tp-4-checkpoint-rank3-15",
    "held_out/zero3-2-backward-rank0-15",
    "idle/fsdp-4-link-rank2-300",  # what a gather waits for and what it carries look alike
    "idle/fsdp-4-quota-rank2-300",  # four ranks share two cores: the quota is never reached
    "idle/pp-2-input-rank1-15",  # 3% of the pipeline's step
}
"""Also delays that contention hides, and those that cost nothing: no one waits for that rank."""


@pytest.mark.parametrize("name", sorted(RUNS))
def test_a_recorded_run_is_told_as_it_was(tmp_path: Path, name: str) -> None:
    told = judged(name, RUNS[name], tmp_path / "run")
    assert told.wrong == []
    assert bool(told.hits) == (told.slow and name not in MISSED)


def test_the_score_counts_what_was_said(tmp_path: Path) -> None:
    names = ("held_out/tp-2-host-rank1-15", "held_out/zero2-4-host-rank0-50", "healthy/gpt-tp-x2")
    told = {name: judged(name, RUNS[name], tmp_path / name) for name in names}
    assert "2 runs; recall 1/2 (50%); phase right in 1/1; precision 1/1" in score(told, "held_out")
    assert "nothing said; findings on 0/1 healthy runs" in score(told, "healthy")
