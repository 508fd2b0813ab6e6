"""What one measured row brings the others of its stack to: floors that may only rise."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.accuracy.score import read
from tests.accuracy.score_calibration import (
    Corrected,
    Errors,
    Known,
    corrected_memory,
    corrected_time,
    memories,
    no_row,
    one_row,
    same_stack,
    times,
)

DATA = Path(__file__).parent / "data"


def before_and_after(known: list[Known], corrected: Corrected) -> tuple[Errors, Errors]:
    assert len({one.stack for one in known}) > 15
    return tuple(score(known, corrected, same_stack, "") for score in (no_row, one_row))


@pytest.mark.slow
def test_one_measured_row_brings_the_others_of_its_stack_closer() -> None:
    none, one = before_and_after(list(times(read(DATA / "throughput.csv"))), corrected_time)
    assert one.percentile(0.5) < min(0.065, none.percentile(0.5))
    assert one.percentile(0.9) < none.percentile(0.9) + 0.01
    assert 0.72 < one.inside < 0.9
    none, one = before_and_after(list(memories(read(DATA / "memory.csv"))), corrected_memory)
    assert one.percentile(0.5) < min(0.06, none.percentile(0.5))
    assert 0.72 < one.inside < 0.9
