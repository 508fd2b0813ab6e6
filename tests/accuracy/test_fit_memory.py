"""The ranges of memory estimates hold for sources that had no part in them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.accuracy.fit_memory import EVERY, Run, inside, ranges_of, runs_of, shapes_of
from tests.accuracy.score import read
from workbench.estimate.memory_range import UNNAMED, ranges
from workbench.estimate.slack import shares

ROWS = read(Path(__file__).parent / "data" / "memory.csv")


@pytest.fixture(scope="module")
def runs() -> list[Run]:
    return runs_of(ROWS)


def errors(runs: list[Run]) -> list[tuple[str, str, float]]:
    return [(run.source, run.kind, run.error(shares())) for run in runs]


def test_a_fit_sees_what_the_product_estimates(runs: list[Run]) -> None:
    """The cached moments give the score's own errors."""
    assert len(runs) > 220
    assert {run.metric for run in runs} == {"allocated", "reserved", "on_card"}


def test_four_of_five_runs_of_unknown_sources_lie_inside(runs: list[Run]) -> None:
    found = errors(runs)
    held = inside(found, shapes_of(found))
    many, share, width = held[EVERY]
    assert many == len(runs)
    assert 0.75 <= share <= 0.85
    assert width <= 1.30  # the target is 1.25


def test_the_file_has_the_ranges_of_these_rows(runs: list[Run]) -> None:
    """`python -m tests.accuracy.fit_memory --write` renews it."""
    found = errors(runs)
    fresh = ranges_of(found, shapes_of(found))
    for kind, one in ranges().items():
        if kind != UNNAMED:
            assert one[:2] == pytest.approx(fresh[kind][:2], abs=0.005), kind
