"""vision.py: what is drawn, who sees which image; then the same curve however it is spread."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import shapes
import torch
import vision

import workbench as wb

TINY = ("--size", "1", "--image", "16", "--steps", "8", "--warmup", "2")


def test_an_image_is_a_function_of_its_number() -> None:
    images, kinds = shapes.draw(range(400), 16)
    assert images.shape == (400, 3, 16, 16)
    assert sorted(set(kinds.tolist())) == list(range(shapes.CLASSES))
    assert kinds.bincount().min() > 25
    again, kind = shapes.draw([7], 16)
    assert torch.equal(again[0], images[7])
    assert kind[0] == kinds[7]


def seen(rank: int, ranks: int, micro_batch: int, accumulate: int, step: int) -> list[list[int]]:
    options = vision.parse_options(
        f"--images 50 --micro-batch {micro_batch} --accumulate {accumulate}".split()
    )
    accelerator = SimpleNamespace(process_index=rank, num_processes=ranks)
    return vision.Trainer.numbers(SimpleNamespace(options=options, accelerator=accelerator), step)


def test_ranks_share_an_epoch_exactly_and_none_is_repeated() -> None:
    alone = [number for step in range(25) for row in seen(0, 1, 16, 1, step) for number in row]
    for epoch in range(8):  # 16 does not divide 50: the steps run on into the next epoch
        assert sorted(alone[50 * epoch : 50 * epoch + 50]) == list(range(50))
    assert alone[:50] != alone[50:100]
    for step in range(5):
        whole = [number for row in seen(0, 1, 16, 1, step) for number in row]
        parts = [seen(rank, 2, 4, 2, step) for rank in (0, 1)]
        spread = [*parts[0][0], *parts[1][0], *parts[0][1], *parts[1][1]]
        assert spread == whole


@pytest.mark.parametrize("arch", ["vit", "resnet"])
@pytest.mark.full
def test_it_learns_what_the_shapes_are(arch: str, tmp_path: Path, store: Path) -> None:
    pytest.importorskip("accelerate")
    run = wb.launch(
        vision.__file__,
        ["--arch", arch, "--size", "1", "--image", "16", "--steps", "100", "--lr", "3e-3"],
        strategy="single",
        cpu=True,
        store=store,
        warm=True,
    )
    assert run.wait(200) == "succeeded", run.logs(tail=30)
    found = re.search(r"held-out accuracy ([\d.]+)% of (\d+) images", run.logs(tail=30))
    assert found
    assert found[2] == "1000"
    assert float(found[1]) > 25  # chance is 12.5 %
    assert run.summary()["loss_last"] < run.summary()["loss_first"] - 0.3


test_it_learns_what_the_shapes_are = pytest.mark.slow(test_it_learns_what_the_shapes_are)


def trained(store: Path, strategy: str, processes: int, *arguments: str) -> dict[str, Any]:
    run = wb.launch(
        vision.__file__,
        [*TINY, *arguments],
        strategy=strategy,
        processes=processes,
        cpu=True,
        store=store,
        wrap="Block",
        warm=True,
    )
    assert run.wait(200) == "succeeded", run.logs(tail=30)
    return run.summary()


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("arch", ["vit", "resnet"])
def test_same_global_batch_same_curve(arch: str, store: Path) -> None:
    alone = trained(store, "single", 1, "--arch", arch, "--micro-batch", "16")
    for strategy, batch in (("ddp", ("4", "--accumulate", "2")), ("fsdp", ("8",))):
        found = trained(store, strategy, 2, "--arch", arch, "--micro-batch", *batch)
        assert found["world_size"] == 2
        assert found["loss_last"] == pytest.approx(alone["loss_last"], rel=1e-4)
