"""Checkpoint intervals and expected wall time: published formulas, a random simulation, refusals."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.errors import UsageError
from workbench.estimate.interruptions import (
    break_even_hours,
    checkpoint_interval,
    daly_interval,
    expected_wall_seconds,
)

DAY = 86400.0


def test_c35_the_intervals_of_the_corrections() -> None:
    """C = 60 s: M = 8 h 31 min, 1 h 11 min, 3 days 93 min."""
    minutes = [round(checkpoint_interval(60, hours) / 60) for hours in (8, 1, 72)]
    assert minutes == [31, 11, 93]


def test_dalys_interval_is_the_best_one() -> None:
    """Against the minimum of his own expected wall time, found by trying."""
    for checkpoint, hours in ((60, 1), (60, 8), (600, 4), (30, 0.2)):
        mean = hours * 3600
        walls = {
            interval: expected_wall_seconds(30 * DAY, checkpoint, interval, mean, 0)
            for interval in (mean * step / 2000 for step in range(1, 4000))
        }
        best = min(walls.values())
        daly = daly_interval(checkpoint, hours)
        found = expected_wall_seconds(30 * DAY, checkpoint, daly, mean, 0)
        assert found == pytest.approx(best, rel=1e-4)


def test_expected_wall_time_is_what_chance_gives() -> None:
    """A random simulation of interruptions, during work, checkpoint and restart alike."""
    work, checkpoint, interval, mean, restart = 20_000.0, 30.0, 400.0, 1500.0, 120.0
    chance = random.Random(7)
    total, trials = 0.0, 4000
    for _ in range(trials):
        for _ in range(int(work / interval)):
            while (left := chance.expovariate(1 / mean)) < interval + checkpoint:
                total += left
                while (again := chance.expovariate(1 / mean)) < restart:
                    total += again
                total += restart
                # after an interruption the clock starts again: exponential times have no memory
            total += interval + checkpoint
    expected = expected_wall_seconds(work, checkpoint, interval, mean, restart)
    assert total / trials == pytest.approx(expected, rel=0.01)


def test_first_order_is_the_limit_and_too_low_beyond() -> None:
    close = (DAY, 10, 600, 100 * 3600, 60)
    assert expected_wall_seconds(*close) == pytest.approx(
        expected_wall_seconds(*close, exact=False), rel=1e-4
    )
    far = (DAY, 60, 657, 3600, 300)
    assert expected_wall_seconds(*far, exact=False) / DAY == pytest.approx(
        1 + 60 / 657 + 657 / 7200 + 300 / 3600
    )
    assert expected_wall_seconds(*far) > 1.03 * expected_wall_seconds(*far, exact=False)


TIMES = st.floats(1, 1e4)


@given(TIMES, TIMES, st.floats(0.5, 1e3), st.floats(1.01, 10))
def test_break_even_is_where_the_bills_are_equal(
    checkpoint: float, restart: float, days: float, ratio: float
) -> None:
    work = days * DAY
    hours = break_even_hours(work, checkpoint, restart, work * ratio)
    if hours is None:
        # one checkpoint is due even when nothing ever happens
        assert work + checkpoint > work * ratio * (1 - 1e-6)
        return
    wall = expected_wall_seconds(
        work, checkpoint, max(daly_interval(checkpoint, hours), 1e-6), hours * 3600, restart
    )
    assert wall <= work * ratio * (1 + 1e-6)
    rarer = expected_wall_seconds(
        work, checkpoint, daly_interval(checkpoint, 2 * hours), 2 * hours * 3600, restart
    )
    assert rarer < wall


def test_never_cheaper_is_none() -> None:
    assert break_even_hours(DAY, 60, 300, DAY) is None
    assert break_even_hours(DAY, 60, 300, 0.5 * DAY) is None


@pytest.mark.parametrize("mean", [0, -1, math.inf, math.nan])
def test_a_mean_must_be_above_0(mean: float) -> None:
    for call in (
        lambda: checkpoint_interval(60, mean),
        lambda: daly_interval(60, mean),
        lambda: expected_wall_seconds(DAY, 60, 600, mean, 60),
        lambda: expected_wall_seconds(DAY, 60, mean, 3600, 60),
    ):
        with pytest.raises(UsageError, match="above 0"):
            call()


def test_hopeless_work_is_an_error_and_no_infinity() -> None:
    with pytest.raises(UsageError, match="never gets through"):
        expected_wall_seconds(DAY, 60, 7200, 60, 60)
    with pytest.raises(UsageError, match="from 0 upwards"):
        expected_wall_seconds(-1, 60, 600, 3600, 60)
    assert expected_wall_seconds(0, 60, 600, 3600, 60) == 0
