"""The notebook on mixtures of experts: every claim in it holds when it is run."""

from __future__ import annotations

import re

import pytest

from workbench.estimate.timing import StepTime

pytest.importorskip("anywidget", reason="the lab extra is not installed")
pytest.importorskip("torch", reason="the train extra is not installed")

from tests.widgets.notebook_run import assert_short_and_clean, beside, read, run_beside_helpers

NAME = "18_experts"


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory):
    return run_beside_helpers(tmp_path_factory, NAME)


@pytest.fixture
def helpers():
    with beside("expert_routing") as module:
        yield module


def test_it_is_short_and_clean() -> None:
    assert_short_and_clean(NAME)
    folded = [cell for cell in read(NAME).cells if cell.metadata.get("jupyter")]
    assert [cell.source.splitlines()[0] for cell in folded] == ["# solution"]


def test_visits_are_counted_and_dropped(helpers) -> None:
    assert helpers.busiest([4, 4, 4, 4]) == 1
    assert helpers.busiest([8, 0, 0, 0]) == 4
    assert helpers.dropped_share([8, 0, 0, 0], 1.0) == 0.75
    assert helpers.dropped_share([8, 0, 0, 0], 4.0) == 0
    assert sum(helpers.drawn_visits(1000, 7)) == 1000


def test_what_a_spread_of_experts_saves(helpers, capsys: pytest.CaptureFixture[str]) -> None:
    """The claims about one machine, and about eight, with few tokens and with many."""
    plain, spread = helpers.estimates("mixtral-8x7b", ("fsdp64", "fsdp64-ep8"))
    assert spread.step_seconds / plain.step_seconds > 0.95, "the step takes as long as before"
    assert waits(spread, "ep") < 0.1, "the tokens cost little"
    assert 0.5 < waits(spread, "sharded weights") / waits(plain, "sharded weights") < 1
    buffers = [float(one) for one in re.findall(r"buffers ([\d.]+)", capsys.readouterr().out)]
    assert buffers[0] > 8 * buffers[1], "one gathered expert instead of eight"

    shares = list[float]()
    for sequences in (1, 4):
        job = {"gpu": "h200", "micro_batch": sequences, "recompute": "full"}
        near, far = helpers.estimates("deepseek-v3", ("fsdp256-ep8", "fsdp256-ep64"), **job)
        assert waits(far, "sharded weights") < waits(near, "sharded weights") / 4
        assert waits(far, "ep") > 4 * waits(near, "ep")
        shares.append(far.step_seconds / near.step_seconds)
    assert shares[0] < 0.5, "with one sequence the wide spread is twice as fast"
    assert shares[1] > 1.1, "with four the narrow one is faster"


def waits(step: StepTime, what: str) -> float:
    return step.parts.get(f"exposed communication: {what}", 0.0)


def test_the_puzzle_is_graded(helpers, capsys: pytest.CaptureFixture[str]) -> None:
    in_order = [list(range(first, first + 4)) for first in (0, 4, 8, 12)]
    assert not helpers.check_placement(in_order)
    assert "1.225" in capsys.readouterr().out
    assert not helpers.check_placement(in_order[:3])
    assert not helpers.check_placement([[0, 1, 2, 3, 4], [5, 6, 7], *in_order[2:]])
    assert not helpers.check_placement([in_order[0], *in_order[:3]])
    assert helpers.check_placement([[3, 6, 9, 7], [15, 12, 1, 11], [10, 8, 2, 4], [5, 0, 13, 14]])


@pytest.mark.full
@pytest.mark.slow
def test_every_claim_holds(printed) -> None:
    printed.has(r"^stored: 46\.7 B parameters; active for a token: 12\.9 B$")
    printed.within(0.95, r"as a share of plain FSDP's: ([\d.]+)\.", 1.1)  # "as long as before"
    printed.has(r"^two +1,246,208 parameters, 721,920 of them on each rank$")
    for name in ("two", "2 x two"):
        printed.within(0, rf"^{name} +30 steps, .*, ([\d.e-]+) apart$", 1e-4)
    printed.within(3.2, r"^no balance loss +busiest expert ([\d.]+) x", 6)  # "about half" of 8
    printed.within(1, r"^balance 0\.01 +busiest expert ([\d.]+) x", 2.6)
    few, many = (printed.number(rf"^ *{n} experts: busiest ([\d.]+) x") for n in (8, 256))
    assert few < 1.2
    assert many > 1.5
    printed.has(r"the busiest has 1\.225 x the mean$", r"^Solved\.$")
