"""recsys.py: what is drawn and its known floor; the same curve however it is spread; resumed."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import clicks
import pytest
import recsys
import torch

import workbench as wb

TINY = ("--steps", "12", "--warmup", "2", "--log-every", "4")


def test_an_example_is_a_function_of_its_number() -> None:
    numbers = torch.arange(-2000, 2000)
    values, dense, clicked, chances = clicks.draw(numbers, 3, 50, 4)
    assert (values.min(), values.max()) == (0, 49)
    assert (values == 0).float().mean() > (
        values == 20
    ).float().mean() * 3  # small ones are frequent
    assert dense.mean().abs() < 0.05
    assert dense.std() == pytest.approx(1, abs=0.05)
    some = numbers[[7, 3000]]
    again = clicks.draw(some, 3, 50, 4)
    for whole, part in zip((values, dense, clicked, chances), again, strict=True):
        assert torch.equal(whole[[7, 3000]], part)
    # Clicks come as their chances say: the floor is the loss of who knows these.
    assert clicked.mean() == pytest.approx(chances.mean().item(), abs=0.03)
    known = torch.nn.functional.binary_cross_entropy(chances, clicked).item()
    lowest, chance = clicks.floor_and_chance(chances)
    assert known == pytest.approx(lowest, abs=0.03)
    assert lowest < chance - 0.1


def test_a_sum_of_pairs_is_the_pairs_summed() -> None:
    vectors = clicks.uniform("vector", torch.arange(3)[:, None], torch.arange(4))
    pairs = (vectors.sum(0).square() - vectors.square().sum(0)).sum() / 2
    one_by_one = sum(vectors[a] @ vectors[b] for a in range(3) for b in range(a))
    assert pairs == pytest.approx(float(one_by_one))


def test_the_model_has_the_parameters_that_it_reports() -> None:
    options = recsys.parse_options(["--fields", "5", "--rows", "7", "--dim", "6", "--width", "9"])
    model = recsys.ClickModel(options)
    assert sum(one.numel() for one in model.parameters()) == options.parameters


def test_the_batch_is_the_same_for_any_ranks() -> None:
    def seen(rank: int, ranks: int, micro_batch: int, accumulate: int) -> list[list[int]]:
        options = recsys.parse_options(
            ["--micro-batch", str(micro_batch), "--accumulate", str(accumulate)]
        )
        accelerator = SimpleNamespace(process_index=rank, num_processes=ranks)
        given = SimpleNamespace(options=options, accelerator=accelerator)
        return [one.tolist() for one in recsys.Trainer.numbers(given, 3)]

    whole = seen(0, 1, 16, 1)[0]
    parts = [seen(rank, 2, 4, 2) for rank in (0, 1)]
    assert [*parts[0][0], *parts[1][0], *parts[0][1], *parts[1][1]] == whole


def trained(store: Path, strategy: str, processes: int, *arguments: str) -> wb.Run:
    run = wb.launch(
        "recsys",
        [*TINY, *arguments],
        strategy=strategy,
        processes=processes,
        cpu=True,
        store=store,
        warm=True,
    )
    assert run.wait(240) == "succeeded", run.logs(tail=30)
    return run


def held_out(run: wb.Run) -> list[float]:
    """The last held-out loss, its floor and chance."""
    found = re.findall(
        r"held-out loss ([\d.]+) .* possible ([\d.]+), .* alone ([\d.]+)", run.logs(0)
    )
    return [float(one) for one in found[-1]]


@pytest.mark.full
def test_it_learns_beyond_the_share_of_clicks(store: Path) -> None:
    pytest.importorskip("accelerate")
    loss, lowest, chance = held_out(trained(store, "single", 1, "--steps", "200"))
    assert lowest - 0.01 < loss < chance - 0.1


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_same_curve_on_any_ranks_and_resumed(store: Path, tmp_path: Path) -> None:
    alone = trained(store, "single", 1, "--micro-batch", "64").summary()["loss_last"]
    for strategy, batch in (("ddp", ("16", "--accumulate", "2")), ("fsdp", ("32",))):
        folder = ("--checkpoint-dir", str(tmp_path / strategy), "--checkpoint-every", "6")
        words: Any = ("--micro-batch", *batch, *folder)
        found = trained(store, strategy, 2, *words).summary()
        assert found["world_size"] == 2
        assert found["loss_last"] == pytest.approx(alone, rel=1e-4)
        at = str(tmp_path / strategy / "step-00000006")
        rest = trained(store, strategy, 2, *words, "--resume", at).summary()
        assert rest["steps"] == 6
        assert rest["loss_last"] == pytest.approx(found["loss_last"], rel=1e-6)


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_it_is_predicted_once_it_was_measured(store: Path) -> None:
    words = ["--steps", "50"]
    assert wb.request("recsys", words, cpu=True, store=store).predicted is None
    wb.measure("recsys", words, cpu=True, store=store)
    request = wb.request("recsys", words, cpu=True, processes=2, strategy="fsdp", store=store)
    assert request.predicted is not None
    assert request.workload is not None
    assert request.workload.model.parameters == recsys.parse_options(words).parameters
