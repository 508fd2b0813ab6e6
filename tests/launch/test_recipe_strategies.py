"""Recipes beside gpt under every strategy that they are told to run with, against one process."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.recipes.tiny_image import model_folder, picture_folder

from .table import STEPS, Row, check, row, rows_to_run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
COMMON = ("--steps", str(STEPS), "--warmup", "2", "--log-every", "5")
RECSYS: Any = {"recipe": "recsys", "words": COMMON}
IMAGE: Any = {"recipe": "finetune_image", "words": COMMON}
EXPERTS: Any = {"recipe": "expert_parallel", "words": (*COMMON, "--seq-len", "64")}
HALF: Any = {"precision": "bf16", "tolerance": 5e-3, "why": "bf16 keeps 8 bits of a number"}
ROWS = [
    row("ddp", 2, accumulate=2, **RECSYS),
    row("fsdp", 2, **RECSYS),
    row("zero2", 2, **RECSYS),
    row("ep", 2, **EXPERTS, always=True),
    row("ep", 4, **EXPERTS),
    row("dp4-ep2", 4, **EXPERTS),
    row("ep", 2, **HALF, **EXPERTS),
    row("ddp", 2, accumulate=2, **IMAGE),
    row("fsdp", 2, **IMAGE),
    row("fsdp", 2, **HALF, **IMAGE),
]

WORDS = {one.recipe: one.words for one in ROWS}


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """A small model and pictures, as arguments of finetune_image."""
    if find_spec("diffusers") is None:
        pytest.skip("pip install 'training-workbench[image]'")
    folder = tmp_path_factory.mktemp("own")
    model, pictures = model_folder(folder / "model"), picture_folder(folder / "pictures")
    return (
        *("--model", str(model), "--data", str(pictures)),
        *("--resolution", "32", "--lr", "1e-3"),
    )


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Any:
    """What one process gives, of each recipe once."""

    @cache
    def run(recipe: str) -> dict[str, Any]:
        one = row("single", 1, recipe=recipe, words=WORDS[recipe])
        return one.run(tmp_path_factory.mktemp("runs"), *more(one, request))

    return run


def more(one: Row, request: pytest.FixtureRequest) -> tuple[str, ...]:
    return request.getfixturevalue("own") if one.recipe == "finetune_image" else ()


@pytest.mark.parametrize("one", rows_to_run(ROWS))
def test_the_curve_is_the_single_process_one(
    tmp_path: Path, alone: Any, one: Row, request: pytest.FixtureRequest
) -> None:
    check(one, alone(one.recipe), tmp_path, *more(one, request))
