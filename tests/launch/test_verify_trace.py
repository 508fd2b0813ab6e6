"""What a verified rank notes of the passes of a script's modules."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.launch.ranks import Ranks
from workbench.verifying.model_rules import loss_not_divided, no_update, wrong_optimizer
from workbench.verifying.trace import read_trace
from workbench.verifying.verify import VARIABLE


def test_a_frozen_model_s_passes_are_no_batches_of_the_training(
    begin: Callable[..., Ranks],
) -> None:
    ranks = begin("teacher.py", **{VARIABLE: json.dumps({"steps": 2})})
    assert ranks.wait() == [0]
    trace = json.loads((ranks.folder / "verify" / "rank-0.json").read_text())
    batches = [[len(batch["samples"]) for batch in step["batches"]] for step in trace["steps"]]
    assert batches == [[8, 8], [8, 8]]  # the student's two passes


@pytest.mark.parametrize("arguments", [(), ("--drawn",)], ids=["loader", "drawn"])
def test_a_step_of_two_networks_has_used_its_batch_once(
    arguments: tuple[str, ...], begin: Callable[..., Ranks]
) -> None:
    ranks = begin("gan.py", *arguments, **{VARIABLE: json.dumps({"steps": 2})})
    assert ranks.wait() == [0]
    steps = read_trace(ranks.folder, "1 rank", 1).ranks[0].steps
    assert [step.consumed for step in steps] == [8, 8]
    assert [len(step.batches) for step in steps] == [3, 4]


@pytest.mark.parametrize(
    ("arguments", "named"), [((), []), (("--frozen",), []), (("--idle",), ["2.weight"])]
)
def test_the_weights_of_an_optimizer_that_steps_second_are_looked_at_after_it(
    arguments: tuple[str, ...], named: list[str], begin: Callable[..., Ranks]
) -> None:
    ranks = begin("two_optimizers.py", *arguments, **{VARIABLE: json.dumps({"steps": 3})})
    assert ranks.wait() == [0]
    found = [verdict.what for verdict in no_update(read_trace(ranks.folder, "1 rank", 1))]
    assert found == named


@pytest.mark.parametrize(
    ("arguments", "whole"), [(("--ignores-count",), True), ((), False)], ids=["mean", "count"]
)
def test_a_trainers_loss_that_no_one_divides_is_seen_through_accelerates_division_by_one(
    arguments: tuple[str, ...], begin: Callable[..., Ranks], *, whole: bool
) -> None:
    asked = {VARIABLE: json.dumps({"steps": 2})}
    ranks = begin("hf_trainer.py", "--smoothing", "0.1", *arguments, ranks=2, **asked)
    assert ranks.wait() == [0, 0]
    traces = [read_trace(ranks.folder, "2 ranks", 1)]
    weights = [weight for step in traces[0].at(0) for weight, _ in step.factors]
    expected = 2 * (0.9 + 0.1 / 64) / (1 if whole else 4)  # of two ranks, two micro-batches
    assert weights == pytest.approx([expected] * 4)
    found = [verdict.kind for verdict in loss_not_divided(traces[0])]
    assert found == (["loss-not-divided"] if whole else [])


def test_a_model_whose_pieces_fsdp_gathers_trains_on(begin: Callable[..., Ranks]) -> None:
    """Storages change their size meanwhile: no one may have fixed it to read them."""
    script = Path(__file__).parents[1] / "verify" / "correct" / "fsdp2_style.py"
    ranks = begin(str(script), ranks=2, **{VARIABLE: json.dumps({"steps": 3})})
    assert ranks.wait() == [0, 0]
    trace = read_trace(ranks.folder, "2 ranks", 1)
    assert [len(rank.steps) for rank in trace.ranks] == [3, 3]
    assert not list(wrong_optimizer(trace))


def test_a_trainers_own_loss_is_seen_through_ddps_last_node(begin: Callable[..., Ranks]) -> None:
    ranks = begin("hf_trainer.py", ranks=2, **{VARIABLE: json.dumps({"steps": 2})})
    assert ranks.wait() == [0, 0]
    trace = read_trace(ranks.folder, "2 ranks", 1)
    weights = [factor[0] for step in trace.at(0) for factor in step.factors if factor]
    assert weights == pytest.approx([2 * 24 / 88] * 4)  # 24 of 88 targets, times the ranks
    assert not list(loss_not_divided(trace))
