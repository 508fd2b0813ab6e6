"""The trials of a scaling study: the same work on 1, 2, 4 … ranks, weak or strong."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from workbench import recipes
from workbench.compare.studies.trial import Trial
from workbench.describe.job import Job
from workbench.describe.strategy import Strategy
from workbench.errors import UsageError
from workbench.estimate.scaling import spread
from workbench.launching.prepare.build_request import request
from workbench.launching.prepare.described import recipe_arguments, recipe_for

MODES = ("weak", "strong")
FEWEST_STEPS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What a scaling study is asked to run."""

    target: str
    """Script or recipe."""
    arguments: tuple[str, ...] = ()
    """Of it. A script's may hold {ranks} and, for strong scaling, {micro_batch}."""
    sizes: tuple[int, ...] = (1, 2)
    """Numbers of ranks, rising."""
    mode: str = "weak"
    """weak: the same batch per rank. strong: the same batch for all ranks together."""
    steps: int = 30
    """Optimizer steps of each run."""
    strategy: str = "ddp"
    """Of all sizes above one rank."""
    options: tuple[tuple[str, Any], ...] = ()
    """Of that strategy, by name."""
    global_batch: int | None = None
    """Strong scaling of a script: samples per step over all ranks."""
    cpu: bool = False
    """Use CPU ranks even if there are GPUs."""

    def __post_init__(self) -> None:
        """Refuse what would measure nothing."""
        if self.mode not in MODES:
            raise UsageError(f"mode must be weak or strong, not {self.mode!r}.")
        if not self.sizes or list(self.sizes) != sorted(set(self.sizes)) or self.sizes[0] < 1:
            raise UsageError(
                f"sizes must be increasing numbers of ranks such as 1,2,4, not {self.sizes}."
            )
        if self.steps < FEWEST_STEPS:
            raise UsageError(
                f"{self.steps} steps are too few: the first ones are warm-up. Use at least "
                f"{FEWEST_STEPS}; 20 to 50 are usual."
            )


def work_of(
    target: str | os.PathLike[str] | Job,
    arguments: Sequence[str],
    strategy: str | None,
    *,
    cpu: bool,
) -> dict[str, Any]:
    """Fields of `Sizes` that say what runs; a job gives its recipe, arguments and strategy.

    Raises:
        UsageError: no recipe trains the job.
    """
    usual = Strategy.usual(2)
    if not isinstance(target, Job):
        words = tuple(arguments)
        what = {"target": os.fspath(target), "arguments": words, "cpu": cpu}
        return {**what, "strategy": strategy or usual}
    recipe, own = recipe_for(target), target.strategy
    is_spread = strategy is None and own.world_size > 1
    options = own.options_beside_name() if is_spread else {}
    return {
        "target": recipe,
        "arguments": (*recipe_arguments(recipe, target.workload), *arguments),
        "strategy": own.name if is_spread else strategy or usual,
        "options": tuple(options.items()),
        "cpu": cpu or target.cluster == "cpu",
    }


def trials(requested: Sequence[Sizes]) -> list[tuple[str, Trial]]:
    """Mode and trial, smallest size first; checked against this host before anything is started.

    Raises:
        UsageError: a size that cannot run here, or a batch that cannot be divided.
    """
    planned: list[tuple[str, Trial]] = []
    for one in requested:
        for ranks in one.sizes:
            trial = _trial(one, ranks)
            request(
                one.target,
                list(trial.arguments),
                strategy="single" if ranks == 1 else one.strategy,
                processes=ranks,
                options=dict(trial.options) if ranks > 1 else {},
                cpu=one.cpu,
            )
            planned.append((one.mode, trial))
    return planned


def _trial(sizes: Sizes, ranks: int) -> Trial:
    is_recipe = sizes.target in recipes.recipes()
    arguments = _recipe(sizes, ranks) if is_recipe else _script(sizes, ranks)
    return Trial(
        label=f"{sizes.mode} {ranks}",
        processes=ranks,
        arguments=arguments,
        strategy=sizes.strategy,
        options=dict(sizes.options),
        steps=None if is_recipe else sizes.steps,
        value=ranks,
    )


def _recipe(sizes: Sizes, ranks: int) -> tuple[str, ...]:
    if sizes.global_batch is not None:
        raise UsageError(
            "--global-batch is for scripts; for a recipe it is micro-batch x accumulation of the "
            "smallest size."
        )
    arguments = (*sizes.arguments, "--steps", str(sizes.steps))
    if sizes.mode == "weak" or ranks == sizes.sizes[0]:
        return arguments
    checked = request(sizes.target, list(arguments), processes=1, cpu=sizes.cpu).arguments
    shape = recipes.shape(checked, recipe=sizes.target)
    if shape["accumulate"] is None or shape["micro_batch"] is None:
        raise UsageError(f"{sizes.target} does not have accumulation to divide. Use --mode weak.")
    total = shape["micro_batch"] * shape["accumulate"] * sizes.sizes[0]
    micro, accumulate = spread(total, ranks, shape["micro_batch"])
    return (*arguments, "--micro-batch", str(micro), "--accumulate", str(accumulate))


def _script(sizes: Sizes, ranks: int) -> tuple[str, ...]:
    words = {"{ranks}": str(ranks)}
    if sizes.mode == "strong":
        if sizes.global_batch is None or not any("{micro_batch}" in one for one in sizes.arguments):
            raise UsageError(
                "Strong scaling keeps the global batch, and how a script divides it is unknown: "
                "give --global-batch N and use {micro_batch} in its arguments, for example -- "
                "--batch-size {micro_batch}."
            )
        micro, _once = spread(sizes.global_batch, ranks, sizes.global_batch)
        words["{micro_batch}"] = str(micro)
    arguments = sizes.arguments
    for word, value in words.items():
        arguments = tuple(one.replace(word, value) for one in arguments)
    return arguments
