"""What the hook records of loops of every kind, compared with what each prints of itself."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.launch.ranks import Ranks

pytestmark = pytest.mark.slow
Run = Callable[..., Ranks]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    started: list[Ranks] = []

    def run_script(script: str, *arguments: str, ranks: int = 1, **more: str) -> Ranks:
        started.append(Ranks(tmp_path / "run", script, *arguments, ranks=ranks, **more))
        codes = started[-1].wait()
        assert codes == [0] * ranks, "\n".join(started[-1].log(rank) for rank in range(ranks))
        assert "workbench capture hook" not in started[-1].log()  # no patch failed
        return started[-1]

    yield run_script
    for ranks in started:
        ranks.end()


def printed(ranks: Ranks, word: str, rank: int = 0) -> list[float]:
    return [float(text) for text in re.findall(rf"\b{word} (\S+)", ranks.log(rank))]


def column(ranks: Ranks, name: str, rank: int = 0) -> list[float | None]:
    return [line.get(name) for line in ranks.lines(rank)]


def test_a_loss_divided_by_the_accumulation_is_told_whole(run: Run) -> None:
    ranks = run("loops.py", "divided")
    assert column(ranks, "step") == [1, 2, 3, 4]
    assert column(ranks, "loss") == pytest.approx(printed(ranks, "loss"))
    assert all(norm > 0 for norm in column(ranks, "grad_norm"))
    # Four batches of four rows with seven tokens each that are not masked.
    assert column(ranks, "tokens") == [112] * 4


def test_two_optimizers_with_a_backward_each_make_one_step(run: Run) -> None:
    ranks = run("loops.py", "gan")
    assert column(ranks, "step") == [1, 2, 3, 4]
    assert all(0 < loss < 50 for loss in column(ranks, "loss"))  # the other one's is over 100


@pytest.mark.parametrize("kind", ["compiled-step", "compiled-function"])
def test_steps_of_a_compiled_optimizer_are_seen(run: Run, kind: str) -> None:
    ranks = run("loops.py", kind)
    assert column(ranks, "step") == [1, 2, 3, 4]
    assert column(ranks, "loss") == pytest.approx(printed(ranks, "loss"))
    assert column(ranks, "lr") == [0.01] * 4


def test_every_step_of_optimizers_that_make_no_rounds_counts(run: Run) -> None:
    ranks = run("loops.py", "folds")
    assert column(ranks, "step") == list(range(1, 37))
    assert column(ranks, "loss") == pytest.approx(printed(ranks, "loss"))
    assert all(seconds > 0 for seconds in column(ranks, "step_seconds")[1:])


def test_steps_before_it_is_known_that_there_are_no_rounds_are_made_up_for(run: Run) -> None:
    ranks = run("loops.py", "drawn", "--steps", "100")
    losses = dict(zip(column(ranks, "step"), column(ranks, "loss"), strict=True))
    told = printed(ranks, "loss")
    assert list(losses)[-60:] == list(range(41, 101))
    assert [losses[step] for step in range(41, 101)] == pytest.approx(told[40:])


@pytest.mark.parametrize("kind", ["closure", "assigned", "compiled-loop", "by-hand"])
def test_steps_with_a_closure_or_with_gradients_assigned(run: Run, kind: str) -> None:
    assert column(run("loops.py", kind), "step") == [1, 2, 3, 4]


@pytest.mark.parametrize("kind", ["transformed", "transformed-aux"])
def test_the_loss_of_a_gradient_by_torchs_transforms_is_seen(run: Run, kind: str) -> None:
    ranks = run("loops.py", kind)
    assert column(ranks, "step") == [1, 2, 3, 4]
    assert column(ranks, "loss") == pytest.approx(printed(ranks, "loss"))


def test_a_script_that_updates_its_weights_itself_tells_its_steps(run: Run) -> None:
    ranks = run("loops.py", "own-update")
    assert column(ranks, "loss") == pytest.approx(printed(ranks, "loss"))


def test_a_script_without_an_optimizer_tells_its_steps_itself(run: Run) -> None:
    ranks = run("loops.py", "said")
    assert column(ranks, "loss") == pytest.approx([1, 1 / 2, 1 / 3, 1 / 4])
    said = (ranks.folder / "metrics" / "rank-0.said.jsonl").read_text().splitlines()
    second = json.loads(said[1])
    values = second["values"]
    assert (second["step"], values["accuracy"], values["note"]) == (2, 0.5, "half")


@pytest.mark.skipif(importlib.util.find_spec("keras") is None, reason="pip install keras")
@pytest.mark.parametrize("kind", ["keras", "own"])
def test_keras_on_torch_tells_each_batch_once(run: Run, kind: str) -> None:
    """Its backward pass is torch's, too: the loss is neither doubled nor the step."""
    ranks = run("keras_torch.py", kind)
    assert column(ranks, "step") == list(range(1, 9))
    assert column(ranks, "loss") == pytest.approx(printed(ranks, "loss"), rel=1e-4)


def test_a_forgotten_set_epoch_and_unused_parameters_are_noted(run: Run) -> None:
    ranks = run("loops.py", "forgetful", "--steps", "18", ranks=2)
    start = ranks.document("start", 1)
    (sampler,) = start["samplers"]
    assert sampler["sampler"] == "DistributedSampler"
    assert (sampler["distributed"], sampler["set_epoch"]) == (True, False)
    unused = start["unused_parameters"]
    assert (unused["count"], unused["first"]) == (2, "parts.spare.weight")
    assert (start["backend"], start["group_world_size"]) == ("gloo", 2)
    assert {"torch", "cuda", "nccl", "hostname"} <= start.keys()
    assert column(ranks, "loss", 1) == pytest.approx(printed(ranks, "loss", 1))


def test_parameters_of_other_steps_and_a_stream_that_is_split_are_not_blamed(run: Run) -> None:
    ranks = run("loops.py", "by-task", "--steps", "20", ranks=2)
    start = ranks.document("start", 1)
    (sampler,) = start["samplers"]
    assert sampler["distributed"] is None
    unused = start["unused_parameters"]
    assert (unused["count"], unused["sometimes"], unused["parameters"]) == (0, 4, 4)
    assert (unused["looks"], unused["last"]) == (16, True)


def test_waiting_for_a_loader_that_every_rank_reads_whole(run: Run) -> None:
    """Compiled, too: the observed forward stays in one graph."""
    ranks = run("loops.py", "same-data", "--data-seconds", "0.01", ranks=2)
    (sampler,) = ranks.document("start")["samplers"]
    assert (sampler["sampler"], sampler["distributed"]) == ("RandomSampler", False)
    waited = column(ranks, "data_seconds")
    assert all(seconds >= 0.04 for seconds in waited)  # four rows of 0.01 s each
    for line in ranks.lines()[1:]:
        assert line["data_seconds"] <= line["step_seconds"]
    assert "graph break" not in ranks.log()
    assert "perf_counter" not in ranks.log()


def test_waiting_for_data_that_the_loop_makes_itself(run: Run) -> None:
    ranks = run("loops.py", "own-fetch", "--data-seconds", "0.05", ranks=2)
    first, second, third, fourth = column(ranks, "data_seconds")
    assert second >= 0.05
    assert fourth >= 0.05
    assert first is None  # the start is no waiting for data
    assert third is None  # nor is an evaluation


def test_fsdp2_norm_over_all_shards(run: Run) -> None:
    ranks = run("loops.py", "fsdp2", ranks=2)
    for rank in (0, 1):
        assert column(ranks, "grad_norm", rank) == pytest.approx(printed(ranks, "norm", rank))
        assert len(column(ranks, "loss", rank)) == 4


def test_deepspeeds_engine_steps_when_it_really_does(run: Run) -> None:
    pytest.importorskip("deepspeed")
    ranks = run("loops.py", "deepspeed", ranks=2)
    assert column(ranks, "step") == [1, 2, 3, 4]
    assert column(ranks, "loss") == pytest.approx(printed(ranks, "loss"))
    assert column(ranks, "grad_norm") == pytest.approx(printed(ranks, "norm"))
    assert column(ranks, "lr") == [0.01] * 4


def test_the_loss_of_a_step_is_what_was_optimised(run: Run) -> None:
    """Every accumulation, divisor, scaler and number of backward calls; short last steps too."""
    ranks = run("losses.py")
    told = re.findall(r"^optimised (\S+) (\S+)$", ranks.log(), re.MULTILINE)
    assert len(told) > 400
    for line, (label, loss) in zip(ranks.lines(), told, strict=True):
        assert line["loss"] == pytest.approx(float(loss), rel=1e-4, abs=1e-5), (label, line)


@pytest.mark.parametrize(
    ("where", "place"),
    [("loader", "data loader"), ("forward", "forward pass"), ("backward", "backward pass")],
)
def test_errors_that_a_loop_swallows_are_noted(run: Run, where: str, place: str) -> None:
    ranks = run("skips_errors.py", where, ranks=2)
    failed = ranks.document("start", 1)["failed_passes"]
    assert (failed["count"], failed["first_step"], failed["place"]) == (4, 2, place)
    assert failed["error"].startswith(("OSError: ", "ValueError: ", "RuntimeError: "))
    assert column(ranks, "step", 1) == list(range(1, 13))
