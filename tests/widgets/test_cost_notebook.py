"""The notebook on cost: short, clean, and every claim in it holds when run."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("anywidget", reason="the lab extra is not installed")

from tests.widgets.notebook_run import Said, assert_exercise, assert_short_and_clean, prose, runner

COST = "04_cost"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory):
    return runner(tmp_path_factory)


def test_it_is_short_and_clean() -> None:
    assert_short_and_clean(COST)


@pytest.mark.full
@pytest.mark.slow
def test_prices_and_gpu_hours(run) -> None:
    said = run(COST)
    for name, then in (("aws", "67.68"), ("cudo", "14.96"), ("lambda", "19.92")):
        said.has(rf"^{name} +8 x h100-sxm +{then} then")
    aws, cudo = (said.number(rf"^{name} +8 x h100-sxm .* ([\d.]+) now") for name in ("aws", "cudo"))
    assert aws / cudo == pytest.approx(3.6, abs=0.1)
    said.has(r"^aws +8 x a100-sxm-40 +32\.77 then")  # the article calls them 80 GB
    said.within(4.5, r"^([\d.]+) times$", 20)  # "wider than the article's"
    said.within(35_500, r"^llama-7b +([\d,]+) h at 100%", 36_500)
    said.within(59_000, r"^llama-7b .* ([\d,]+) h at 60%", 61_000)
    said.within(610_000, r"^llama-2-70b .* ([\d,]+) h at 60%", 630_000)
    said.within(82_432 * 0.85, r"^([\d,]+) A100-hours", 82_432 * 1.15)


def dollars(said: Said, row: str) -> float:
    return said.number(rf"^{row}.*\$([\d,.]+)$")


@pytest.mark.full
@pytest.mark.slow
def test_dollars_of_a_run(run) -> None:
    said = run(COST)
    hours = [said.number(rf"^1 x {gpu}-?\w*, .*/h +([\d,]+) h ") for gpu in ("rtx-4090", "h100")]
    assert 3 < hours[0] / hours[1] < 5  # "if you have four times the time"
    small = {
        gpu: dollars(said, f"1 x {gpu}") for gpu in ("rtx-4090", "l40s", "a100", "h100", "b200")
    }
    assert min(small, key=lambda gpu: small[gpu]) == "rtx-4090"
    large = {gpu: dollars(said, f"8 x {gpu}") for gpu in ("a40", "l40s", "a100", "h100", "b200")}
    assert large["a40"] > large["h100"]
    assert large["b200"] < large["a100"]
    terms = ("useful work", "start-up", "failed attempts", "checkpoints written", "idle", "egress")
    said.has(*(rf"^{term} +\$" for term in terms), r"^finished run +\$[\d,]+$")
    runs = [dollars(said, f"{name} .*") for name in ("runpod", "azure")]
    assert 10_000 < runs[1] - runs[0] < 50_000  # the article's range
    said.has(r"^cudo +15\.\d\d \$/h  n/a \(terms priced")


@pytest.mark.full
@pytest.mark.slow
def test_spot_failures_and_the_plan(run) -> None:
    said = run(COST)
    said.has(r"^aws +0%, .*8\d% off$")
    for hours, minutes in ((1, 11), (8, 31), (72, 93)):
        said.has(rf"every +{hours} h: save every +{minutes} min")
    bills = [said.number(rf"taken every +{hours} h: \$([\d,]+)") for hours in (1, 4, 24)]
    assert bills == sorted(bills, reverse=True)
    on_demand = said.number(r"against on-demand \$([\d,]+)")
    assert bills[0] < on_demand / 2  # "saves most of the bill"
    wall = said.number(r"taken every +1 h: .* ([\d,]+) h$")
    steady = 24 * said.number(r"(\d+) d \d+ h on 8 GPUs") + said.number(r"d (\d+) h on 8 GPUs")
    assert 1.4 < wall / steady < 1.6  # "half as long again"
    assert 0.8 * wall > steady  # at 20 % off it costs more than on demand
    planned = said.number(r"^planned: ([\d,.]+) h")
    low, high = said.number(r"lost \(([\d.]+) to"), said.number(r"lost \([\d.]+ to ([\d.]+)\)")
    lost = said.number(r"of them ([\d.]+) lost")
    for seed in range(3):  # "each differs from the plan"
        hours = said.number(rf"^seed {seed}: .* ([\d,.]+) h, \$")
        assert low - lost < hours - planned < high - lost + 5
        assert hours != planned
    said.within(15, r"16384 GPUs: .* ([\d.]+)% lost", 20)  # "a sixth on top"
    assert said.number(r"^ +256 GPUs: .* ([\d.]+)% lost") < 3
    said.has(
        r"^1 .*\$\d+$", r"no other plan is both cheaper and faster; \d+ plans", r"'memory': \d+"
    )
    said.has(r"^- .*The runner-up|^- The runner-up", r"^- Speed of the winner", r"^no plan$")
    said.has(r"for the finished run\.$", r"plans")  # the two faces, as text


def test_the_stated_arithmetic() -> None:
    """Numbers that the prose derives itself."""
    said = r"10,771 dollars a month are 14\.96 . 720; the other way it would say 10,921"
    assert re.search(said, prose(COST))
    assert [round(14.96 * month) for month in (720, 730)] == [10_771, 10_921]
    assert "16,431 hours" in prose(COST)
    assert round(6 * 13e9 * 300e9 / (989e12 * 0.4) / 3600) == 16_431
    assert "275 to 550 times too low" in prose(COST)
    assert [round(82_432 / hours, -1) for hours in (300, 150)] == [270, 550]


@pytest.mark.parametrize(
    ("answers", "wrong"),
    [
        ({"thousands": "16.4", "minutes_each": "62"}, None),
        ({"thousands": "6.6"}, "6 N T"),
        ({"minutes_each": "31"}, "square root"),
    ],
)
def test_exercises_are_checked(answers: dict[str, str], wrong: str | None) -> None:
    assert_exercise(COST, "thousands = None", answers, wrong)
