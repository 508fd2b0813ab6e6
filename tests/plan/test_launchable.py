"""What the planner offers and what the launcher takes, compared over every layout of both."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from workbench import recipes
from workbench.describe import Strategy, Workload
from workbench.describe.library_options import SCHEDULES
from workbench.describe.supported import (
    RECIPE_PRECISIONS,
    SPLITS,
    check_supported,
    why_not,
    why_not_fp8,
)
from workbench.errors import UsageError
from workbench.launching.prepare.described import recipe_arguments, workload_of
from workbench.launching.prepare.layout_flags import layout_flags
from workbench.planning.layouts import enumerate_layouts
from workbench.planning.space import ANY_SCRIPT, DATA, Space

SHAPE = ["--layers", "8", "--hidden", "256", "--heads", "8", "--seq-len", "128"]


def work(precision: str = "bf16") -> Workload:
    found = workload_of("gpt", recipes.shape(SHAPE))
    return replace(found, precision=precision)


def offered(space: Space, precision: str = "bf16") -> Iterator[tuple[Strategy, int]]:
    """Every strategy that may be a plan, with its sequences per rank and step."""
    for ranks in (1, 2, 8):
        batch, asked = 8 * ranks, work(precision)
        found = enumerate_layouts(asked, nodes=1, per_node=ranks, batch=batch, space=space)
        for layout in found:
            for choice in layout.choices:
                yield choice.strategy, batch // choice.strategy.data_ranks


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_recipe_takes_every_layout_that_is_offered(schedule: str) -> None:
    count = 0
    for strategy, share in offered(Space(data=DATA, schedule=schedule)):
        asked = replace(work(), micro_batch=1, accumulate=share)
        check_supported(strategy, SPLITS, "cuda")
        recipes.shape([*recipe_arguments("gpt", asked), *layout_flags(strategy)])
        again = Strategy.parse(strategy.name, strategy.world_size)
        assert again.with_options(**strategy.options_beside_name()) == strategy
        count += 1
    assert count >= 20


@pytest.mark.parametrize("precision", [*RECIPE_PRECISIONS, "bf16-pure", "fp16-pure"])
def test_what_the_recipe_does_not_compute_in_is_left_to_scripts(precision: str) -> None:
    """A layout that only the recipe starts is offered in the recipe's precisions alone."""
    of_recipe = [one for one, _ in offered(Space(), precision) if why_not(one)]
    words = [*SHAPE, "--precision", precision]
    if precision in RECIPE_PRECISIONS:
        recipes.shape(words)
        if precision == "fp8":
            assert not any(why_not_fp8(one) for one in of_recipe)
        else:
            assert of_recipe
    else:
        with pytest.raises(UsageError, match="invalid choice"):
            recipes.shape(words)
        assert not of_recipe
        assert any(one.world_size > 1 for one, _ in offered(Space(), precision))


def test_any_script_takes_what_is_offered_for_any_script() -> None:
    for strategy, _ in offered(ANY_SCRIPT):
        check_supported(strategy, None, "cuda")


def test_the_other_launchers_layouts_are_told_why() -> None:
    space: Any = {"nodes": 1, "per_node": 8, "batch": 64}
    named = {
        one.strategy.name: one for one in enumerate_layouts(work("fp8"), **space, space=Space())
    }
    reason = named["fsdp4-tp2"].reason if "fsdp4-tp2" in named else named["dp4-tp2"].reason
    assert reason
    every = enumerate_layouts(work("fp8"), **space, space=Space(launchable=False))
    assert sum(bool(one.choices) for one in every) > sum(
        bool(one.choices) for one in named.values()
    )
