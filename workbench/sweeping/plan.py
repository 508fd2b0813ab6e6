"""What a sweep is: its options, declared once, and the plan that its folder keeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, TypedDict, cast

from workbench.describe.option import Option
from workbench.describe.option_limits import check_declared
from workbench.errors import UsageError
from workbench.observe.series_names import better
from workbench.store.shapes import fit_as
from workbench.sweeping.parameters import Parameter

STOPS = ("none", "asha", "hyperband")
SAMPLERS = ("tpe", "random")
ETA = 3
"""Of those that reach a look, the best third continues."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepOptions:
    """What is varied, how often, and by what a trial is judged."""

    grid: Annotated[
        Mapping[str, Any],
        Option(help="Try every value: lr=1e-4,3e-4. Repeat it.", metavar="NAME=V,V", split="pairs"),
    ] = field(default_factory=dict[str, Any])
    """In every combination with the others of the grid."""
    random: Annotated[
        Mapping[str, Any],
        Option(
            help="Draw values: wd=0:0.1, lr=1e-5:1e-3:log, layers=2:8:int, opt=adamw,sgd.",
            metavar="NAME=LOW:HIGH",
            split="pairs",
        ),
    ] = field(default_factory=dict[str, Any])
    """From a range or a list."""
    trials: Annotated[
        int | None, Option(help="Runs [default: the grid once, or 20].", least=1, most=10_000)
    ] = None
    """Fewer than the grid has: some of its combinations."""
    metric: Annotated[str, Option(help="What is compared: loss, or any name that is logged.")] = (
        "loss"
    )
    """loss is the training loss that the hook sees."""
    direction: Annotated[
        str | None, Option(help="lower or higher is better.", choices=("lower", "higher", None))
    ] = None
    """None = as the metric's name tells."""
    stop: Annotated[
        str, Option(help="Stop trials early: none, asha, hyperband.", choices=STOPS)
    ] = "none"
    """By successive halving: see `stopping`."""
    first_look: Annotated[
        int | None, Option(help="Steps before a trial may be stopped [default: a ninth].", least=1)
    ] = None
    """Later looks are at 3, 9, 27 … times as many steps."""
    sampler: Annotated[
        str, Option(help="How --random draws: tpe learns from results, random.", choices=SAMPLERS)
    ] = "tpe"
    """TPE's first ten trials are drawn at random."""
    parallel: Annotated[
        int | None, Option(help="Trials at a time [default: as many as have devices].", least=1)
    ] = None
    """The queue gives each its devices."""
    seed: Annotated[int, Option(help="Seed of the drawn values.", least=0)] = 0
    """With one trial at a time, the same results draw the same values."""

    def __post_init__(self) -> None:
        """Refuse what is not allowed."""
        check_declared(self)


_CHOICES = {"direction": ("lower", "higher"), "stop": STOPS, "sampler": SAMPLERS}


class _PredictedDoc(TypedDict, total=False):
    """`prepared.Prediction`."""

    trial_hours_low: float | None
    trial_hours_high: float | None
    hours: float | None
    wall_hours: float | None
    usd: float | None
    share: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPlan:
    """A sweep as its folder keeps it."""

    name: str
    """Name of the sweep, also of its folder; trials are NAME/trial-000 …"""
    id: str
    """Of this sweep alone: its runs name it."""
    parameters: tuple[Parameter, ...]
    """What is varied."""
    trials: int
    """Runs."""
    metric: str
    """What is compared."""
    direction: str
    """lower or higher."""
    stop: str
    """none, asha or hyperband."""
    first_look: int | None
    """Steps of the first look; None = trials are not stopped early."""
    steps_total: int | None
    """Of one trial, where it is known."""
    sampler: str
    """tpe or random."""
    parallel: int | None
    """Trials at a time; None = as many as have devices."""
    seed: int
    """Of the drawn values."""
    created_at: float
    """Unix seconds."""
    priority: int = 0
    """Of its trials in the queue: higher ones start first."""
    visible_gpus: str | None = None
    """CUDA_VISIBLE_DEVICES of the shell that started it."""
    predicted: Mapping[str, Any] | None = None
    """Hours and dollars, as said before it started."""

    def document(self) -> dict[str, Any]:
        """Plain JSON form."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {**values, "parameters": [parameter.document() for parameter in self.parameters]}

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> SweepPlan:
        """From its plain form; what a later version added is left out.

        Raises:
            KeyError, TypeError, ValueError: it is not that of a sweep.
        """
        values = fit_as(cls, {**document})
        values["parameters"] = tuple(map(Parameter.read, document["parameters"]))
        predicted = document.get("predicted")
        values["predicted"] = None
        if isinstance(predicted, dict):
            values["predicted"] = fit_as(_PredictedDoc, cast("dict[str, Any]", predicted))
        plan = cls(**values)
        for name, allowed in _CHOICES.items():
            if values[name] not in allowed:
                raise ValueError(f"{name} {values[name]!r}")
        for name in ("trials", "first_look", "steps_total", "parallel"):
            if values[name] is not None and values[name] < 1:
                raise ValueError(f"{name} {values[name]}")
        return plan

    def looks(self, until: int) -> list[int]:
        """Steps of the looks up to `until`.

        >>> plan = SweepPlan(name="a", id="", parameters=(), trials=1, metric="loss", seed=0,
        ...     direction="lower", stop="asha", first_look=10, steps_total=90, sampler="tpe",
        ...     parallel=None, created_at=0.0)
        >>> plan.looks(500)
        [10, 30]
        """
        last = until if self.steps_total is None else min(until, self.steps_total - 1)
        looks_at, step = list[int](), self.first_look or 0
        while 0 < step <= last:
            looks_at.append(step)
            step *= ETA
        return looks_at


def direction_of(metric: str, requested: str | None) -> str:
    """Lower or higher, as requested or as the name says. Raises UsageError: neither says it."""
    direction = requested or better(metric)
    if direction is None:
        raise UsageError(
            f"Whether a lower or a higher {metric} is better, its name does not tell. Say it: "
            "--direction lower, or --direction higher."
        )
    return direction


def first_look(options: SweepOptions, steps_total: int | None) -> int | None:
    """Steps of the first look; None where trials are not stopped early.

    Raises:
        UsageError: no one knows how long a trial is, or it would be over before.
    """
    if options.stop == "none":
        return None
    if steps_total is None and options.first_look is None:
        raise UsageError(
            f"--stop {options.stop} looks at trials after some of their steps, and how many steps "
            "a trial takes is not known here. Say when to look first: --first-look 100."
        )
    first = options.first_look or max(1, round((steps_total or 0) / ETA**2))
    if steps_total is not None and first >= steps_total:
        raise UsageError(
            f"The first look is at step {first}, and a trial has {steps_total} steps. Give a "
            "smaller --first-look, more steps, or --stop none."
        )
    return first


def labels(parameters: Sequence[Parameter]) -> str:
    """What is varied, in one line."""
    return ", ".join(map(str, parameters))
