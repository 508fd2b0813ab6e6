"""What somebody measured of a job, read from text and held against what is predicted of it."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from workbench.describe import Cluster
from workbench.describe.hardware import device_of
from workbench.describe.job import Job
from workbench.describe.stack import ALL, NONE, StackMeasurement
from workbench.errors import UnknownNameError, UsageError
from workbench.estimate.memory import training_memory
from workbench.estimate.parts import STATES, Estimate
from workbench.estimate.stack_factor import facts_of
from workbench.estimate.step_time import step_time
from workbench.estimate.timing import StepTime
from workbench.observe.prediction_error.stack import layout_text
from workbench.store.names import slug
from workbench.store.stack_calibrations import SANE, is_near, of_trainer
from workbench.units import GIB, format_bytes, format_seconds
from workbench.version import __version__

_TIMES = (
    *("step_seconds", "steps_per_second", "tokens_per_second", "tokens_per_second_per_gpu"),
    *("samples_per_second", "mfu"),
)
_BYTES: Mapping[str, tuple[float, str]] = {
    "peak_gib": (GIB, "allocated_bytes"),
    "peak_gb": (1e9, "allocated_bytes"),
    "reserved_gib": (GIB, "reserved_bytes"),
    "on_card_gib": (GIB, "on_card_bytes"),
}
"""Figure -> bytes of its unit, and what of an estimate it is."""
FIGURES = (*_TIMES, *_BYTES)
_UNITS = {
    r"tok(?:en)?s?/s(?:ec)?/gpu": "tokens_per_second_per_gpu",
    r"tok(?:en)?s?/s(?:ec)?": "tokens_per_second",
    r"(?:samples?|sequences?)/s(?:ec)?": "samples_per_second",
    r"s(?:ec(?:onds?)?)?(?:/(?:step|it))?": "step_seconds",
    r"(?:steps?|it)/s(?:ec)?": "steps_per_second",
    r"gib": "peak_gib",
    r"gb": "peak_gb",
}
"""Unit behind a number -> the figure that it is."""
_OF_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?!\d)")
_NEAR_N = 0.3
"""How near (as a logarithm) a rate may be to another by the number of GPUs before it is taken for
that of one of them, or of all."""
_LEAST_SUSPECT = 3
"""GPUs from which on a rate that is off by their number is not simply slow or fast."""


def read_figures(text: str) -> dict[str, float]:
    """Figures by name, from ``tokens_per_second=9100`` or ``9,100 tokens/s``, several with commas.

    Raises:
        UsageError: a word is neither.

    >>> read_figures("tokens_per_second=9,100, peak_gib=61.2")
    {'tokens_per_second': 9100.0, 'peak_gib': 61.2}
    >>> read_figures("9,100 tokens/s,100 GiB")
    {'tokens_per_second': 9100.0, 'peak_gib': 100.0}
    >>> read_figures("2 s,100 GiB; mfu=0.4") == read_figures("2s , 100GiB and mfu=.4")
    True
    >>> read_figures("2 it/s"), read_figures("0.5 s/it")
    ({'steps_per_second': 2.0}, {'step_seconds': 0.5})
    """
    plain = _OF_THOUSANDS.sub(lambda number: number[0].replace(",", ""), text)
    words = re.split(r"[,;\n]|\band\b", plain)
    figures: dict[str, float] = {}
    for word in filter(None, map(str.strip, words)):
        name, value = _figure(word)
        if name in figures:
            raise UsageError(f"{text!r} gives {name} twice. Leave one out.")
        figures[name] = value
    return figures


def _figure(word: str) -> tuple[str, float]:
    name, equals, number = (part.strip() for part in word.partition("="))
    if not equals:
        match = re.fullmatch(r"([\d.,]+)\s*(\D.*)", word)
        number, unit = (match[1], match[2].strip().lower()) if match else ("", "")
        name = next((name for text, name in _UNITS.items() if re.fullmatch(text, unit)), "")
    plain = number.replace(",", "")
    if not name or not re.fullmatch(r"(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?", plain):
        raise UsageError(
            f"{word!r} is not a figure. Give NAME=NUMBER with a name of {', '.join(FIGURES)}."
        )
    return name, float(plain)


def of_figures(job: Job, figures: Mapping[str, float], name: str | None = None) -> StackMeasurement:
    """What someone measured of a job, beside what is predicted of it without any calibration.

    Raises:
        UsageError: an unknown, impossible or doubtful figure.
    """
    _check_figures(figures)
    plain = replace(job, workload=replace(job.workload, calibration=None))
    values: dict[str, Any] = {}
    for figure, value in figures.items():
        if figure in _TIMES:
            values |= _step(plain, figure, value)
        else:
            values |= _peak(plain, figure, value)
    accelerator = job.cluster.accelerator if isinstance(job.cluster, Cluster) else None
    device = device_of(job.cluster)
    stack = of_trainer(job.trainer)
    figures_text = ", ".join(f"{figure} {value:g}" for figure, value in figures.items())
    usual = slug(
        f"{stack.trainer}-{job.workload.model.name}-{accelerator.id if accelerator else 'cpu'}"
    )
    return StackMeasurement(
        name=usual.lower() if name is None else _checked(name),
        figures=figures_text,
        measured_at=time.time(),
        is_run=False,
        facts=facts_of(stack, job.workload, device, accelerator.arch if accelerator else ""),
        layout=layout_text(asdict(plain.workload), job.strategy.options(), job.strategy.name),
        gpu=accelerator.id if accelerator else None,
        version=__version__,
        **values,
    )


def _checked(name: str) -> str:
    if slug(name) != name or name in {ALL, NONE}:
        raise UsageError(
            f"{name!r} cannot name a measurement. Use letters, digits and '-', but neither "
            f"{ALL} nor {NONE}."
        )
    return name


def _check_figures(figures: Mapping[str, float]) -> None:
    if not figures:
        raise UsageError(f"No figure is given. Give some of {', '.join(FIGURES)}.")
    for figure, value in figures.items():
        if figure not in FIGURES:
            raise UnknownNameError.near("figure", figure, FIGURES)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e15:  # pyright: ignore[reportUnnecessaryIsInstance]  (callers are not type-checked)
            raise UsageError(f"{figure} must be a number above 0, not {value!r}.")
    for group in (_TIMES, tuple(_BYTES)):
        several = [figure for figure in figures if figure in group]
        if len(several) > 1:
            raise UsageError(f"{' and '.join(several)} measure the same. Leave one out.")
    share = figures.get("mfu", 0.0)
    if share > 1:
        raise UsageError(f"mfu = {share:g} is impossible: it is a share of 1. 41 % is mfu=0.41.")


def _seconds(figure: str, value: float, step: StepTime, job: Job) -> float:
    """A step's seconds from any figure of its time."""
    match figure:
        case "step_seconds":
            return value
        case "steps_per_second":
            return 1 / value
        case "tokens_per_second":
            return step.tokens / value
        case "tokens_per_second_per_gpu":
            return step.tokens / value / step.gpus
        case "samples_per_second":
            work = job.workload
            return work.micro_batch * work.accumulate * job.strategy.data_ranks / value
        case _:
            if not step.peak_flops:
                raise UsageError(
                    f"mfu: the catalog has no peak of this GPU in {job.workload.precision}. Give "
                    "tokens_per_second."
                )
            return step.model_flops / (value * step.peak_flops)


def _step(job: Job, figure: str, value: float) -> dict[str, Any]:
    """Measured over predicted seconds of a step.

    Raises:
        UsageError: nothing predicts it, or it is too far from the prediction.
    """
    if not isinstance(job.cluster, Cluster) or job.cluster.accelerator is None:
        raise UsageError(
            f"{figure} needs a GPU of the catalog, whose step is predicted: add --gpu G "
            "(workbench gpus lists them). For a CPU: workbench calibrate --from RUN."
        )
    step = step_time(job)
    ratio = _seconds(figure, value, step, job) / step.step_seconds
    _check_unit(figure, value, ratio, step.gpus)
    if not is_near(ratio):
        raise UsageError(
            f"{figure} = {value:g} is a step of {format_seconds(ratio * step.step_seconds)}, "
            f"{ratio:.2g} times the predicted {format_seconds(step.step_seconds)}. {SANE[0]:g} to "
            f"{SANE[1]:g} times is taken for the stack; check the job's options and the unit."
        )
    return {"step_ratio": ratio}


def _check_unit(figure: str, value: float, ratio: float, gpus: int) -> None:
    """Refuse a rate of one GPU that is given as that of all, or the other way round."""
    if gpus < _LEAST_SUSPECT:
        return
    for name, suspect, other in (
        ("tokens_per_second", ratio, "tokens_per_second_per_gpu"),
        ("tokens_per_second_per_gpu", 1 / ratio, "tokens_per_second"),
        ("samples_per_second", ratio, "tokens_per_second_per_gpu"),
    ):
        if figure == name and abs(math.log(suspect / gpus)) < _NEAR_N:
            away = f"1/{suspect:.1f} of" if ratio > 1 else f"{suspect:.1f} times"
            whose = "one GPU's" if ratio > 1 else "all GPUs'"
            raise UsageError(
                f"{figure} = {value:g} is {away} what is predicted, and there are {gpus} GPUs: it "
                f"looks like {whose}. Give {other}, or step_seconds where it is right as it is."
            )


def _peak(job: Job, figure: str, value: float) -> dict[str, Any]:
    """Measured and predicted bytes.

    Raises:
        UsageError: more than the card has, or too far from the prediction.
    """
    unit, attribute = _BYTES[figure]
    estimate: Estimate = training_memory(job)
    peak, predicted = value * unit, getattr(estimate, attribute)
    if estimate.card_bytes is not None and peak > estimate.card_bytes:
        raise UsageError(
            f"{figure} = {value:g} is impossible: the card has {format_bytes(estimate.card_bytes)}."
        )
    if not is_near(peak / predicted):
        raise UsageError(
            f"{figure} = {value:g} is {peak / predicted:.2g} times the predicted "
            f"{format_bytes(predicted)}. Check the job's options and the unit."
        )
    states = sum(estimate.parts.get(name, 0) for name in STATES)
    return {
        "peak_bytes": peak,
        "predicted_bytes": predicted,
        "tensors_bytes": estimate.allocated_bytes,
        "states_bytes": states,
    }
