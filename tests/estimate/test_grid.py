"""The closed form meets the exact simulation on a seeded random grid of small trainings.

Every ninth pair; ``python -m tests.estimate.grid`` runs all.
"""

from __future__ import annotations

import statistics

import pytest

from tests.estimate.grid import COUNTS, EXACT, Pair, errors, offloaded, pairs


def test_the_grid_is_large_and_repeats_itself() -> None:
    assert len(pairs()) == sum(COUNTS.values()) >= 200
    assert pairs() == pairs()
    assert pairs(1) != pairs(2)


def of_layouts(*, exact: bool) -> list[Pair]:
    return [pair for pair in pairs() if (pair[1].name in EXACT) == exact][::9]


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("exact", [True, False], ids=["single and FSDP", "other layouts"])
def test_the_closed_form_meets_the_simulation(exact) -> None:
    """The aim is 2 % per case (other layouts 5 %). What lies beyond is tiny: a few dozen MiB where
    one matrix of the vocabulary more or less counts; how many and how far is bounded here."""
    aim, share, worst = (0.02, 0.2, 0.12) if exact else (0.05, 0.05, 0.06)
    lines = errors(of_layouts(exact=exact))
    sizes = [abs(line[0]) for line in lines]
    beyond = [line for line in lines if abs(line[0]) > aim]
    assert statistics.median(sizes) <= 0.01
    assert len(beyond) <= share * len(lines), beyond
    assert max(sizes) <= worst, beyond


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_offloaded_activations_meet_the_simulation() -> None:
    """One operation's tensors come back to the card at a time, not a whole block's."""
    lines = errors(offloaded())
    sizes = [abs(line[0]) for line in lines]
    assert statistics.median(sizes) <= 0.02
    assert max(sizes) <= 0.08, max(lines, key=lambda line: abs(line[0]))
