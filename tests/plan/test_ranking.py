"""The Pareto front is what it says."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from workbench.planning.ranking import pareto

# Few distinct values, so that ties are frequent.
POINTS = st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6)), max_size=25)


def beats(one: tuple[float, float], other: tuple[float, float]) -> bool:
    return one[0] <= other[0] and one[1] <= other[1] and one != other


@given(POINTS)
def test_the_front_is_exactly_the_unbeaten(points: list[tuple[float, float]]) -> None:
    front = pareto(points)
    assert list(front) == [
        index for index, one in enumerate(points) if not any(beats(other, one) for other in points)
    ]


@given(POINTS)
def test_everything_else_is_beaten_by_the_front(points: list[tuple[float, float]]) -> None:
    front = pareto(points)
    for index, one in enumerate(points):
        assert index in front or any(beats(points[other], one) for other in front)
