"""The closed form meets the exact simulation on a seeded random grid of small trainings."""

from __future__ import annotations

import statistics

import pytest

from tests.estimate.grid import COUNTS, EXACT, Pair, errors, pairs


def test_the_grid_is_large_and_repeats_itself() -> None:
    assert len(pairs()) == sum(COUNTS.values()) >= 200
    assert pairs() == pairs()
    assert pairs(1) != pairs(2)


def of_layouts(*, exact: bool) -> list[Pair]:
    return [pair for pair in pairs() if (pair[1].name in EXACT) == exact]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("exact", [True, False], ids=["single and FSDP", "other layouts"])
def test_the_closed_form_meets_the_simulation(exact: bool) -> None:
    """Bound per case 2 % (others 5 %); the cases beyond it are few, tiny and stated here."""
    bound = 0.02 if exact else 0.05
    lines = errors(of_layouts(exact=exact))
    sizes = [abs(line[0]) for line in lines]
    beyond = [line for line in lines if abs(line[0]) > bound]
    assert statistics.median(sizes) <= bound / 3
    assert len(beyond) <= 0.1 * len(lines), beyond
    assert max(sizes) <= 0.1, beyond
