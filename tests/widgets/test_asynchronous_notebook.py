"""The notebook on asynchronous training: every claim in it holds when it is run."""

from __future__ import annotations

from math import pi, sin

import pytest

pytest.importorskip("anywidget", reason="the lab extra is not installed")
pytest.importorskip("torch", reason="the train extra is not installed")

import torch

from tests.widgets.notebook_run import assert_short_and_clean, beside, read, run_beside_helpers

NAME = "17_asynchronous"


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory):
    return run_beside_helpers(tmp_path_factory, NAME)


@pytest.fixture
def helpers():
    with beside("asynchronous_updates") as module:
        yield module


def test_it_is_short_and_clean() -> None:
    assert_short_and_clean(NAME)
    folded = [cell for cell in read(NAME).cells if cell.metadata.get("jupyter")]
    assert [cell.source.splitlines()[0] for cell in folded] == ["# solution"]


def test_the_gradient_is_that_of_torch(helpers) -> None:
    """The lesson's own backward pass, with the same weights both ways, beside autograd."""
    task = helpers.Task()
    weights = task.start.clone().requires_grad_()
    (exact,) = torch.autograd.grad(task.loss(weights), weights)
    by_hand = helpers._first_layer(task, task.start, task.start)
    assert torch.allclose(by_hand, exact[: by_hand.numel()], atol=1e-6)


@pytest.mark.parametrize("age", [0, 1, 3, 7, 15, 31])
def test_the_largest_rate_is_the_formulas(helpers, age: int) -> None:
    """x(t+1) = x(t) - lr x(t - age) shrinks below 2 sin(pi / (4 age + 2))."""
    assert helpers.largest_lr(age) == pytest.approx(2 * sin(pi / (4 * age + 2)), rel=0.01)


def test_what_diverges_is_seen_to_diverge(helpers, capsys: pytest.CaptureFixture[str]) -> None:
    """The path swings, so |x| at single steps may fall while its swings grow."""
    (source,) = [cell.source for cell in read(NAME).cells if "= distances(" in cell.source]
    exec(source, {"distances": helpers.distances})
    lines = [line.rpartition(": ")[2].split(", ") for line in capsys.readouterr().out.splitlines()]
    for age, line in zip((0, 3, 7), lines, strict=True):
        found = [float(one) for one in line]
        assert found == sorted(found, reverse=age < 7), age


def test_ages_and_waits_of_a_clock_without_spread(helpers, monkeypatch) -> None:
    """Equal workers that take turns: each gradient is as old as there are others."""
    monkeypatch.setattr(helpers, "SPREAD", 0.0)
    assert set(helpers.asynchronous(0.1, 5.5).ages[8:]) == {7}
    curve = helpers.synchronous(0.1, 5.5, slow=1)
    assert curve.times == [0.0, 3.0, 6.0]
    assert helpers.synchronous(0.1, 2.5, slow=1, backups=1).times == [0.0, 1.0, 2.0, 3.0]
    spans = list(helpers.work_spans(6.0, 1, waits=True))
    assert [start for worker, start, _ in spans if worker == 5] == [0.0, 3.0]
    assert len(list(helpers.work_spans(6.0, 1, waits=False))) == 2 + 7 * 6
    assert helpers.stage_ages(4) == [3, 2, 1, 0]


def test_what_the_constants_are_said_to_be(helpers) -> None:
    """Updates until TIME, and the best of the lesson's rates, with and without a backup."""
    curve = helpers.synchronous(0.1, helpers.TIME)
    assert sum(time <= helpers.TIME for time in curve.times[1:]) == 13
    assert len(helpers.asynchronous(0.1, helpers.TIME).ages) == pytest.approx(150, abs=5)
    rates = [0.05 * 2**power for power in range(8)]

    for backups, best in ((0, 1.6), (1, helpers.SYNCHRONOUS_LR)):
        curves = {rate: helpers.synchronous(rate, helpers.TIME, 1, backups) for rate in rates}
        assert min(rates, key=lambda rate: curves[rate].loss_at(helpers.TIME)) == best


def test_the_puzzle_is_graded(helpers, capsys: pytest.CaptureFixture[str]) -> None:
    assert not helpers.check_factor(lambda age: 1.0)
    assert not helpers.check_factor(lambda age: 0.0)
    assert capsys.readouterr().out.count("too high") == 4
    assert helpers.check_factor(lambda age: 1 / (1 + age))


@pytest.mark.full
@pytest.mark.slow
def test_every_claim_holds(printed) -> None:
    printed.within(1.3, r"^eight equal workers .*: ([\d.]+) times", 1.5)  # "nearly a third"
    printed.within(2.1, r"^one of them slow .*: ([\d.]+) times", 3)  # "more than half"
    printed.within(6.5, r"^mean age with eight workers: ([\d.]+)\.", 7.2)
    printed.within(0.2, r"at age 0: ([\d.]+)\. Not", 0.22)  # "about a tenth" of 2
    for age, by_search, by_formula in ((7, 0.209, 0.209), (31, 0.05, 0.05)):
        printed.has(rf"^age +{age}: largest rate {by_search:.3f}, by the formula {by_formula:.3f}$")


@pytest.mark.full
@pytest.mark.slow
def test_each_way_at_its_own_rate(printed) -> None:
    at_one_rate = {
        name: printed.number(rf"^rate 0\.1: {name} +loss ([\d.]+)")
        for name in ("synchronous", "synchronous, 1 backup", "asynchronous")
    }
    times = [at_one_rate[name] / at_one_rate["asynchronous"] for name in list(at_one_rate)[:2]]
    assert 15 < times[0] < 21  # "ten to twenty times better"
    assert 9 < times[1] < 12
    best = {
        name: tuple(
            printed.number(rf"^{name} +best loss {pattern}")
            for pattern in (r"([\d.]+),", r"[\d.]+, at rate ([\d.]+)")
        )
        for name in at_one_rate
    }
    assert best["asynchronous"][0] < best["synchronous, 1 backup"][0] < 2 * best["asynchronous"][0]
    assert best["synchronous"][0] > 4 * best["synchronous, 1 backup"][0]  # the slow worker
    assert best["synchronous, 1 backup"][1] == 3.2 == 8 * best["asynchronous"][1]
    printed.has(r"^Not yet\.$", r"^Solved\.$")


@pytest.mark.full
@pytest.mark.slow
def test_servers_and_pipelines(printed) -> None:
    printed.within(4, r"^ 8 workers: one server .*, (\d+) times as long", 6)
    printed.within(30, r"^64 workers: one server .*, (\d+) times as long", 36)
    printed.has(r"per stage: 7 6 5 4 3 2 1 0$", r"^with stashing: 16 14 12 10 8 6 4 2$")
    printed.within(0.98, r"^rate 0\.1: .*age 7: ([\d.]+)", 1)  # "hardly matters"
    printed.within(0.86, r"^rate 1\.0: .*age 7: ([\d.]+)", 0.9)  # "up to thirty degrees"
