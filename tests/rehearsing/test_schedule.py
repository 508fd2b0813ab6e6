"""Schedules against the planner's own terms: what is lost, what is rented, what is billed."""

from __future__ import annotations

import itertools
import math
import random
import statistics
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.rehearsing.__main__ import TRACES, Trace, weibull
from workbench.errors import UsageError
from workbench.estimate.interruptions import expected_wall_seconds, wall_range_seconds
from workbench.rehearsing.interruptions import (
    ECC,
    LOST,
    SPOT,
    Event,
    Rates,
    drawn,
    read_fault,
    read_trace,
    traced,
)
from workbench.rehearsing.schedule import THROTTLE_SECONDS, Schedule, Work, message_of, schedule

WORK = Work(
    steps=20_000,
    step_seconds=10.0,
    seconds_per_step=10.0,
    interval_steps=150,
    saving_seconds=60.0,
    start_seconds=300.0,
    restart_seconds=600.0,
    nodes=4,
    gpus=32,
    limit_seconds=1e9,
)
MEAN = 8000.0
TERMS = (200_000.0, 60.0, 1500.0, MEAN, 600.0)


def played(trace: Trace, seed: int, work: Work = WORK) -> Schedule:
    chance = random.Random(seed)
    return schedule(work, traced(trace(chance, MEAN), work.gpus, chance))


def test_rates_of_the_plan_cost_what_the_planner_expects() -> None:
    rates = Rates(spot_per_second=1 / MEAN, failures_per_second=0.0)
    ends = [schedule(WORK, drawn(rates, 32, random.Random(seed))).end for seed in range(150)]
    found = statistics.fmean(ends) - WORK.start_seconds
    assert found == pytest.approx(expected_wall_seconds(*TERMS), rel=0.012)


@pytest.mark.parametrize("name", ["exponential", *TRACES])
def test_four_of_five_runs_lie_in_the_range(name: str) -> None:
    trace = TRACES.get(name, weibull(1.0))
    low, high = wall_range_seconds(*TERMS)
    ends = [played(trace, seed).end - WORK.start_seconds for seed in range(100)]
    assert sum(low <= end <= high for end in ends) >= 80


def test_the_range_is_one_of_chance_not_of_everything() -> None:
    low, high = wall_range_seconds(*TERMS)
    ends = [played(TRACES["weibull-0.5"], seed).end - WORK.start_seconds for seed in range(100)]
    assert (high - low) / (max(ends) - min(ends)) < 1
    rare = wall_range_seconds(3600.0, 10.0, 600.0, 1e7, 600.0)
    assert rare[0] == pytest.approx(3660)
    assert rare[1] < 3720


EVENTS = st.lists(
    st.tuples(st.floats(1, 9e5), st.sampled_from([SPOT, LOST, ECC]), st.integers(0, 31)),
    max_size=30,
)


@settings(max_examples=60, deadline=None)
@given(events=EVENTS, saving=st.sampled_from([0.0, 60.0]), restart=st.sampled_from([0.0, 600.0]))
def test_what_holds_of_every_schedule(
    events: list[tuple[float, str, int]], saving: float, restart: float
) -> None:
    work = replace(WORK, saving_seconds=saving, restart_seconds=restart)
    made = schedule(work, [Event(at=at, cause=why, gpu=gpu) for at, why, gpu in sorted(events)])
    assert made.finished
    assert made.attempts[-1].last_step == work.steps
    for attempt in made.attempts:
        at, step = attempt.begin, attempt.first_step
        for one in attempt.segments:
            assert (one.begin, one.first_step) == (pytest.approx(at), step)
            assert one.end >= one.begin - 1e-6
            at, step = one.end, one.last_step
        assert (attempt.end, attempt.last_step) == (pytest.approx(at), step)
    for before, after in zip(made.attempts, made.attempts[1:], strict=False):
        assert after.begin == before.end
        assert after.first_step <= before.last_step
    for node in range(work.nodes):  # each place in the job is paid for without a gap
        own = sorted((one.begin, one.end) for one in made.leases if one.node == node)
        assert own[0][0] == 0
        assert own[-1][1] == pytest.approx(made.end)
        assert all(one[1] == two[0] for one, two in itertools.pairwise(own))


def test_a_throttled_gpu_slows_the_whole_job() -> None:
    usual = schedule(WORK, [])
    slow = schedule(WORK, [], [read_fault("throttle@2h:5", nodes=8, each=8)])
    longer = THROTTLE_SECONDS * (1 - 0.55)
    assert slow.end - usual.end == pytest.approx(longer, abs=WORK.saving_seconds)


def test_a_job_that_never_ends_is_given_up() -> None:
    work = replace(WORK, limit_seconds=1e6)
    made = schedule(work, traced([700.0], 32, random.Random(1)))
    assert not made.finished
    assert made.end > 1e6


def test_a_job_of_which_nothing_is_ever_saved_is_given_up_in_bounded_memory() -> None:
    made = schedule(WORK, traced([1.0], 32, random.Random(1)))
    assert not made.finished
    assert 1000 < len(made.attempts) < 10_000


@pytest.mark.parametrize(
    ("text", "says"),
    [("", "no numbers"), ("12\nsoon\n", "line 2"), ("-4", "not a time"), ("nan", "not a time")],
)
def test_a_trace_that_is_none(tmp_path: Any, text: str, says: str) -> None:
    path = tmp_path / "trace"
    path.write_text(text)
    with pytest.raises(UsageError, match=says):
        read_trace(path)


@pytest.mark.parametrize(
    "text", ["throttle", "melt@2h", "ecc@2x", "spot@-1h", "spot@1h:" + 5000 * "9"]
)
def test_a_fault_that_is_none(text: str) -> None:
    with pytest.raises(UsageError, match="such as throttle@2h:5"):
        read_fault(text, nodes=2, each=8)


def test_a_lost_gpu_has_the_number_that_its_machine_gives_it() -> None:
    work = replace(WORK, nodes=2, gpus=16)
    for text, says in (
        ("gpu-lost@2h:1:3", "GPU 3 of machine 1 "),
        ("ecc@2h:5", "GPU 5 of machine 0 "),
    ):
        assert message_of(read_fault(text, nodes=2, each=8), work).startswith(says)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("throttle@2h:16", "GPUs 0 to 15"),
        ("throttle@2h:2:0", "nodes 0 to 1, each with GPUs 0 to 7"),
        ("gpu-lost@2h:1:8", "each with GPUs 0 to 7"),
    ],
)
def test_a_fault_of_a_gpu_that_is_none(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        read_fault(text, nodes=2, each=8)


def test_a_trace_goes_on_at_its_beginning(tmp_path: Any) -> None:
    path = tmp_path / "trace"
    path.write_text("# seconds\n100\n\n200, a\n")
    assert read_trace(path) == (100.0, 200.0)
    events = traced(read_trace(path), 8, random.Random(0))
    times = [next(events).at for _ in range(5)]
    gaps = [two - one for one, two in itertools.pairwise(times)]
    assert sorted(set(gaps)) == [100.0, 200.0]
    assert math.isfinite(times[-1])
