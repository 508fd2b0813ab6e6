"""The fit: finds constants, leaves a source out altogether, and makes ranges that hold."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from tests.accuracy import fit as fitting
from tests.accuracy.fit import Fit, Run, errors, residuals, runs, unnamed
from tests.accuracy.fit_ranges import Residual, chosen, coverage, ranges
from tests.accuracy.regret import Group, Layout, groups, median_regret
from tests.accuracy.score import read
from workbench.estimate.fitted import constants

FEW = ("sustained_ampere", "sustained_hopper", "contention")


@pytest.fixture(scope="module")
def known() -> list[Run]:
    """A few runs of three sources."""
    rows = [row for row in read(fitting.ROWS) if row["source_id"] in {"fms", "korth", "nanotron"}]
    return runs(rows)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    some = {name: constants()[name] for name in FEW}
    monkeypatch.setattr(fitting, "constants", lambda: some)
    return {name: one.value for name, one in some.items()}


def test_constants_that_made_the_runs_are_found(known: list[Run], few: dict[str, float]) -> None:
    """Rates that the model itself gives with other constants lead back to them."""
    true = {"sustained_ampere": 0.75, "sustained_hopper": 0.7, "contention": 0.12}
    logs = residuals(known, true)
    made = [
        replace(run, rate=run.rate / math.exp(log)) for run, log in zip(known, logs, strict=True)
    ]
    fit = Fit(made, few)
    found = fit.without(None)
    after = Fit(made, found)
    assert np.abs(after.now).max() < np.abs(fit.now).max() / 3
    assert found["sustained_hopper"] == pytest.approx(0.7, rel=0.05)


def test_what_all_sources_share_is_not_left_to_them(
    known: list[Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs that are all 6 % quicker make the model quicker, not each source an exception."""
    some = {name: constants()[name] for name in ("memory", "sustained_ampere", "sustained_hopper")}
    monkeypatch.setattr(fitting, "constants", lambda: some)
    values = {name: one.value for name, one in some.items()}
    logs = residuals(known, values)
    made = [
        replace(run, rate=run.rate * math.exp(0.06 - log))
        for run, log in zip(known, logs, strict=True)
    ]
    centred = residuals(made, Fit(made, values).without(None))
    monkeypatch.setattr(fitting, "SHARED", 10.0)
    free = residuals(made, Fit(made, values).without(None))
    assert 0 < np.mean(centred) < np.mean(free) / 1.5 < 0.06


def test_a_source_left_out_has_no_part(known: list[Run], few: dict[str, float]) -> None:
    slower = [replace(run, rate=run.rate / 2) if run.source == "korth" else run for run in known]
    one, other = (Fit(some, few) for some in (known, slower))
    assert one.without("korth") == pytest.approx(other.without("korth"))
    assert one.without("fms") != pytest.approx(other.without("fms"))


def test_values_stay_in_their_bounds(known: list[Run], few: dict[str, float]) -> None:
    found = Fit([replace(run, rate=run.rate * 9) for run in known], few).without(None)
    for name, value in found.items():
        assert constants()[name].low * 0.999 <= value <= constants()[name].high * 1.001


def test_errors_by_stratum_and_source(known: list[Run]) -> None:
    found = errors(known, np.full(len(known), math.log(0.8)))
    assert found.flat == pytest.approx((0.25, 0.25))
    assert found.strata == pytest.approx((0.25, 0.25))
    assert found.sources == pytest.approx(0.25)


def test_an_unnamed_stack_is_the_same_run_otherwise(known: list[Run]) -> None:
    other = unnamed(known[0])
    assert other.case.workload.kernels.software_stack == "unknown"
    assert other.case.strategy == known[0].case.strategy


def test_ranges_hold_what_is_left_out() -> None:
    sources = "abcdefghij"
    values = [
        Residual(source, "few GPUs", "named", 0.02 * (place - 5) + 0.01 * turn)
        for turn, source in enumerate(sources)
        for place in range(10)
    ]
    found, share = chosen(values)
    assert share >= 0.8
    assert share == coverage(values, 0.14) or share < coverage(values, 0.05) + 1e-9
    low, high = found["few GPUs", "named"]
    assert low < 1 < high
    wider = ranges(values, 0.01)["few GPUs", "named"]
    assert wider[0] <= low < high <= wider[1]


def test_an_unknown_stacks_range_counts_each_source_once() -> None:
    """A source of many alike runs does not narrow what is said of a stack that no one measured."""
    many = [Residual("many", "fp8", "unknown", 0.01 * (index % 2)) for index in range(400)]
    others = [
        Residual(f"s{index}", "fp8", "unknown", value)
        for index, value in enumerate((-0.5, -0.3, 0.2, 0.4))
    ]
    named = [one._replace(stack="named") for one in (*many, *others)]
    found = ranges([*many, *others, *named], 0.1)
    assert found["fp8", "unknown"][1] > found["fp8", "named"][1] * 1.2


def test_regret_is_what_the_choice_lacks() -> None:
    slow = Layout(name="dp", measured=50.0, predicted=90.0)
    best = Layout(name="tp", measured=100.0, predicted=80.0)
    group = Group(title="", gpus=128, layouts=(slow, best))
    assert group.chosen is slow
    assert group.regret == pytest.approx(0.5)
    assert median_regret([group, replace(group, layouts=(best,))]) == pytest.approx(0.25)


def test_the_choice_among_published_layouts_is_good() -> None:
    """Median regret: 2 % at most up to 64 GPUs, 10 % at most from 128."""
    known = groups(read(fitting.ROWS))
    small = [group for group in known if group.gpus < 128]
    large = [group for group in known if group.gpus >= 128]
    assert len(small) >= 15
    assert len(large) >= 10
    assert (median_regret(small) or 0) <= 0.02
    assert (median_regret(large) or 0) <= 0.10
