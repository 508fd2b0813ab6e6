"""The trials of a scaling study: the same work on 1, 2, 4 … ranks, weak or strong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from workbench import recipes
from workbench.compare.studies.bench import Bench
from workbench.compare.studies.trial import Trial
from workbench.describe.option import Option
from workbench.describe.option_limits import check_declared
from workbench.errors import UsageError
from workbench.estimate.scaling import spread

MODES = ("weak", "strong")
BOTH = "both"
FEWEST_STEPS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What a scaling study is asked to run, beside what all of its trials share (`Bench`)."""

    sizes: Annotated[
        tuple[int, ...],
        Option(help="Numbers of ranks, for example 1,2,4.", least=1, metavar="N,N", split="commas"),
    ] = (1, 2)
    """Numbers of ranks, rising."""
    mode: Annotated[str, Option(help="weak, strong or both.", choices=(*MODES, BOTH))] = MODES[0]
    """weak: the same batch per rank. strong: the same batch for all ranks together."""
    steps: Annotated[
        int, Option(help="Steps of each run; the first are not measured.", least=1)
    ] = 30
    """Optimizer steps of each run."""
    to: Annotated[
        tuple[int, ...],
        Option(
            help="Extrapolate to these numbers of ranks, more than --sizes.",
            least=1,
            metavar="N,N",
            split="commas",
        ),
    ] = ()
    """Numbers of ranks to extrapolate to."""
    global_batch: Annotated[
        int | None, Option(help="Global batch, for strong scaling of a script.", least=1)
    ] = None
    """Strong scaling of a script: samples per step over all ranks. A script's arguments hold
    {micro_batch} then."""

    def __post_init__(self) -> None:
        """Refuse what would measure nothing."""
        check_declared(self)
        if not self.sizes or list(self.sizes) != sorted(set(self.sizes)):
            raise UsageError(
                f"sizes must be increasing numbers of ranks such as 1,2,4, not {self.sizes}."
            )
        if self.steps < FEWEST_STEPS:
            raise UsageError(
                f"{self.steps} steps are too few: the first ones are warm-up. Use at least "
                f"{FEWEST_STEPS}; 20 to 50 are usual."
            )

    @property
    def modes(self) -> tuple[str, ...]:
        """weak, strong, or one after the other."""
        return MODES if self.mode == BOTH else (self.mode,)


def trials(bench: Bench, sizes: Sizes) -> list[tuple[str, Trial]]:
    """Mode and trial, smallest size first; checked against this host before anything is started.

    Raises:
        UsageError: a size that cannot run here, or a batch that cannot be divided.
    """
    planned = [
        (mode, _trial(bench, sizes, mode, ranks)) for mode in sizes.modes for ranks in sizes.sizes
    ]
    for _, trial in planned:
        bench.request(trial)
    return planned


def _trial(bench: Bench, sizes: Sizes, mode: str, ranks: int) -> Trial:
    arguments = _recipe if bench.is_recipe else _script
    return Trial(
        label=f"{mode} {ranks}",
        processes=ranks,
        arguments=arguments(bench, sizes, mode, ranks),
        steps=None if bench.is_recipe else sizes.steps,
        value=ranks,
    )


def _recipe(bench: Bench, sizes: Sizes, mode: str, ranks: int) -> tuple[str, ...]:
    if sizes.global_batch is not None:
        raise UsageError(
            "--global-batch is for scripts; for a recipe it is micro-batch x accumulation of the "
            "smallest size."
        )
    arguments = (*bench.arguments, "--steps", str(sizes.steps))
    if mode == "weak" or ranks == sizes.sizes[0]:
        return arguments
    smallest = bench.request(Trial(label="", processes=1, arguments=arguments))
    shape = recipes.shape(smallest.arguments, recipe=bench.target)
    if shape["accumulate"] is None or shape["micro_batch"] is None:
        raise UsageError(f"{bench.target} does not have accumulation to divide. Use --mode weak.")
    total = shape["micro_batch"] * shape["accumulate"] * sizes.sizes[0]
    micro, accumulate = spread(total, ranks, shape["micro_batch"])
    return (*arguments, "--micro-batch", str(micro), "--accumulate", str(accumulate))


def _script(bench: Bench, sizes: Sizes, mode: str, ranks: int) -> tuple[str, ...]:
    words = {"{ranks}": str(ranks)}
    if mode == "strong":
        if sizes.global_batch is None or not any(
            "{micro_batch}" in argument for argument in bench.arguments
        ):
            raise UsageError(
                "Strong scaling keeps the global batch, and how a script divides it is unknown: "
                "give --global-batch N and use {micro_batch} in its arguments, for example -- "
                "--batch-size {micro_batch}."
            )
        micro, _once = spread(sizes.global_batch, ranks, sizes.global_batch)
        words["{micro_batch}"] = str(micro)
    arguments = bench.arguments
    for word, value in words.items():
        arguments = tuple(argument.replace(word, value) for argument in arguments)
    return arguments
