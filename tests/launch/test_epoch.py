"""One pass over the user's data, and the micro-batch that it wants."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import workbench as wb
from tests.training_data.tiny import chat, model_folder, write_lines
from workbench.launching.prepare.epoch import epoch_of, largest_batch, shortest_epoch
from workbench.launching.prepare.step_prediction import predict


@pytest.fixture
def on_gpus(tmp_path: Path) -> wb.Request:
    """A fine-tuning of 500 rows as two H100 would do it."""
    pytest.importorskip("trl")
    data = write_lines(tmp_path / "chats.jsonl", [chat(number) for number in range(500)])
    words = ["--model", str(model_folder(tmp_path / "model")), "--data", str(data)]
    request = wb.request("finetune", words, cpu=True, processes=2, store=tmp_path)
    cluster = replace(wb.Cluster.rented("h100-sxm", gpus=2), usd_per_hour=4.0)
    work = request.workload
    assert work is not None
    assert request.trainer is not None
    strategy = request.trainer.on(request.strategy)
    step = predict(work, strategy, cluster, "cuda", request.store)
    assert step is not None
    return replace(request, device="cuda", cluster=cluster, predicted_time=step[0])


def test_an_epoch_has_steps_tokens_time_and_price(on_gpus: wb.Request) -> None:
    epoch, step = epoch_of(on_gpus), on_gpus.predicted_time
    assert epoch is not None
    assert step is not None
    assert (epoch.steps, epoch.tokens) == (63, 500 * 1024)
    assert epoch.seconds == pytest.approx(63 * step.step_seconds)
    assert epoch.usd == pytest.approx(4.0 * 63 * step.step_seconds / 3600)
    assert str(epoch).startswith("an epoch: 63 steps, at most 512 k tokens, ")


def test_the_shortest_epoch_is_the_shortest_of_all_that_fit(on_gpus: wb.Request) -> None:
    found, largest = shortest_epoch(on_gpus), largest_batch(on_gpus)
    assert found is not None
    assert largest is not None
    assert largest.value is not None
    assert found.micro_batch <= min(largest.value, 250)  # no more than a rank has examples
    work, before = on_gpus.workload, epoch_of(on_gpus)
    assert work is not None
    assert before is not None
    assert found.epoch.seconds is not None
    assert before.seconds is not None
    assert on_gpus.trainer is not None
    strategy = on_gpus.trainer.on(on_gpus.strategy)
    assert found.epoch.seconds <= before.seconds
    for size in (1, 2, 8, 64, 250):
        other = predict(
            replace(work, micro_batch=size),
            strategy,
            on_gpus.cluster,
            "cuda",
            on_gpus.store,
        )
        assert other is not None
        steps = -(-250 // size)
        assert found.epoch.seconds <= steps * other[0].step_seconds * 1.000001
    assert (found.before, found.global_batch) == (8, 2 * found.micro_batch)


def test_without_data_or_time_nothing_is_said(tmp_path: Path) -> None:
    request = wb.request("gpt", ["--steps", "20"], cpu=True, store=tmp_path)
    assert epoch_of(request) is None
    assert shortest_epoch(request) is None
