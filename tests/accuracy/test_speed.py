"""The time estimate against published measurements: floors that may only rise."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.accuracy.rows import NotExpressedError
from tests.accuracy.score import percentile, read
from tests.accuracy.score_speed import (
    Score,
    scorable,
    score_hours,
    score_scaling,
    score_throughput,
)
from tests.accuracy.speed_rows import speed_of
from workbench.errors import WorkbenchError
from workbench.estimate.memory import training_memory
from workbench.estimate.timing import StepTime

HERE = Path(__file__).parent
ROWS = read(HERE / "data" / "throughput.csv")


@pytest.fixture(scope="module")
def score() -> Score:
    return score_throughput(ROWS)


def means(score: Score) -> tuple[float, float]:
    medians = [percentile(found, 0.5) for found in score.errors.values()]
    tails = [percentile(found, 0.9) for found in score.errors.values()]
    return sum(medians) / len(medians), sum(tails) / len(tails)


def test_nearly_all_rows_can_be_expressed(score: Score) -> None:
    assert len(scorable(ROWS)) == 604
    assert sum(score.skipped.values()) <= 15, score.skipped


def test_runs_that_ran_are_said_to_fit() -> None:
    short: list[str] = []
    known = 0
    for row in scorable(ROWS):
        try:
            case = speed_of(row).case
            memory = training_memory(case.workload, case.strategy, case.cluster, is_named=True)
        except (NotExpressedError, WorkbenchError):
            continue
        known += 1
        assert memory.card_bytes is not None
        if memory.on_card_bytes > memory.card_bytes:
            short.append(row["id"])
    assert known > 500
    assert len(short) <= 0.02 * known, short


def test_tokens_per_second_meet_the_target(score: Score) -> None:
    """Means over strata: median 12 %, 90th percentile 35 %."""
    median, tail = means(score)
    assert median <= 0.11
    assert tail <= 0.32


def test_the_large_strata_are_good_on_their_own(score: Score) -> None:
    for name in (
        "Ampere | multi-node | dense | pretrain",
        "Ampere | one node | dense | pretrain",
        "Hopper | multi-node | dense | pretrain",
        "Hopper | one node | dense | pretrain",
    ):
        assert len(score.errors[name]) >= 50
        assert percentile(score.errors[name], 0.5) <= 0.10, name


def test_most_measurements_lie_in_the_stated_range(score: Score) -> None:
    """The range of an uncalibrated estimate holds four of five published runs."""
    steps = [(line["step"], line) for line in score.table if "measured" in line]
    inside = [
        step.low <= float(str(line["predicted"])) / float(str(line["measured"])) <= step.high
        for step, line in steps
        if isinstance(step, StepTime)
    ]
    assert len(inside) == len(steps)
    assert sum(inside) / len(inside) >= 0.8


def test_scaling_is_within_five_points() -> None:
    points, _ = score_scaling(read(HERE / "data" / "scaling.csv"))
    assert len(points) >= 90
    assert percentile(points, 0.5) <= 3


def test_hours_of_published_runs() -> None:
    score = score_hours(read(HERE / "data" / "cost_hours.csv"))
    errors = [error for found in score.errors.values() for error in found]
    assert len(errors) >= 10
    assert percentile(errors, 0.5) <= 0.20


def test_the_score_does_not_know_prose_or_sources(score: Score) -> None:
    """Without source, title, notes and id of any row, every figure is the same."""
    blind = dict.fromkeys(("id", "source_id", "source_title", "source_ref", "notes"), "")
    after = score_throughput([row | blind for row in ROWS])
    assert after.errors == score.errors
    assert after.skipped == score.skipped


def test_the_command_prints_one_object() -> None:
    done = subprocess.run(
        [sys.executable, str(HERE / "score.py"), "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    document = json.loads(done.stdout)
    assert {"scored", "skipped", "median_error", "p90_error", "strata"} <= set(
        document["throughput"]
    )
    assert {"scored", "median_error_points"} <= set(document["scaling"])
    assert {"scored", "median_error"} <= set(document["cost_hours"])
