"""What one measured row brings the others of its stack to: floors that may only rise."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.accuracy.score import read
from tests.accuracy.score_calibration import (
    TRIED,
    Corrected,
    Errors,
    Known,
    corrected_memory,
    corrected_time,
    in_use,
    memories,
    no_row,
    one_row,
    same_stack,
    times,
    with_another,
)
from workbench.estimate import stack_factor

DATA = Path(__file__).parent / "data"


def before_and_after(known: list[Known], corrected: Corrected) -> tuple[Errors, Errors]:
    assert len({one.stack for one in known}) > 15
    return tuple(score(known, corrected, same_stack, "") for score in (no_row, one_row))


@pytest.mark.slow
def test_one_measured_row_brings_the_others_of_its_stack_closer() -> None:
    none, one = before_and_after(list(times(read(DATA / "throughput.csv"))), corrected_time)
    assert one.percentile(0.5) < min(0.065, none.percentile(0.5))
    assert one.percentile(0.9) < none.percentile(0.9) + 0.03
    assert 0.72 < one.inside < 0.9
    none, one = before_and_after(list(memories(read(DATA / "memory.csv"))), corrected_memory)
    assert one.percentile(0.5) < min(0.06, none.percentile(0.5))
    assert 0.65 < one.inside < 0.92


def test_the_constants_that_a_fit_tries_are_the_product_s() -> None:
    for name, values in TRIED.items():
        assert min(values) <= in_use(name) <= max(values), name
    rows = list(memories(read(DATA / "memory.csv")[:60]))
    before = stack_factor.USUAL_ERRORS
    none, some = (with_another("OWN_ERROR", one, rows, corrected_memory) for one in (1e3, 0.05))
    assert none.keys() == some.keys()
    assert none != some
    with_another("USUAL_ERRORS 1", 0.5, rows, corrected_memory)
    assert before == stack_factor.USUAL_ERRORS
