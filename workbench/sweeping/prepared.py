"""A sweep before it starts: checked against script and host, with hours and dollars."""

from __future__ import annotations

import os
import shlex
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import mean
from typing import Any

from workbench.errors import StoreError, UsageError
from workbench.launching.prepare.build_request import build_request
from workbench.launching.prepare.options import LaunchOptions
from workbench.launching.prepare.request import Request
from workbench.launching.prepare.targets import resolve
from workbench.launching.start.start import prepare
from workbench.recover.limits import LIMITS
from workbench.store.files import write_json_atomic
from workbench.store.names import check_name
from workbench.store.runs import Store
from workbench.sweeping.files import SweepFiles, make_folder
from workbench.sweeping.parameters import (
    Parameter,
    combinations,
    grid_parameter,
    random_parameter,
    texts_of,
)
from workbench.sweeping.plan import SweepOptions, SweepPlan, direction_of, first_look
from workbench.sweeping.script_values import checked, overwriting_note, read_script, with_values
from workbench.sweeping.stopping import Share, trained_share
from workbench.sweeping.study import Trials, optuna, shuffled_grid

_MOST_PREDICTED = 8  # trials whose time is predicted; the others take their mean
_USUAL_TRIALS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What a sweep is predicted to take; None = not known."""

    trial_hours_low: float | None
    """Of the shortest trial looked at, trained to its end."""
    trial_hours_high: float | None
    """Of the longest."""
    hours: float | None
    """Device hours of all trials, each trained to its end: the sum of their times."""
    wall_hours: float | None
    """With as many at a time as have devices."""
    usd: float | None
    """Bill of that, without stopping any."""
    share: Share
    """The part of it that stopping early leaves."""

    def document(self) -> dict[str, Any]:
        """Plain JSON form."""
        names = ("trial_hours_low", "trial_hours_high", "hours", "wall_hours", "usd")
        share = {name: getattr(self.share, name) for name in ("low", "expected", "high")}
        return {**{name: getattr(self, name) for name in names}, "share": share}


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedSweep:
    """What would start."""

    plan: SweepPlan
    """What is varied."""
    template: Request
    """The launch without the varied values."""
    first: Request
    """The launch of the first trial."""
    prediction: Prediction
    """Of all trials."""
    room: int
    """Trials at a time."""
    notes: tuple[str, ...]
    """What to know before it starts."""


def prepare_sweep(
    target: str, arguments: Sequence[str], chosen: SweepOptions, options: LaunchOptions
) -> PreparedSweep:
    """Check a sweep against script and host; nothing is written or started.

    Raises:
        UsageError: it cannot be started so; the message says what would work.
        HostError: Optuna, torch or accelerate is missing here.
    """
    optuna()
    resolved = resolve(target)
    reading, label = read_script(resolved), resolved.recipe or resolved.path.name
    parameters = _parameters(chosen)
    parameters = tuple(checked(parameter, reading, label) for parameter in parameters)
    _check_once(parameters)
    options = replace(options, queue=True)
    template = build_request(target, arguments, options)
    layout = len(template.layout_arguments)
    words = template.arguments[layout:]
    trials, notes = _count(chosen, parameters)
    if not reading.complete:
        notes.append(f"Whether {label} takes these options was not checked: {reading.note}")
    notes += [*filter(None, [overwriting_note(resolved)]), *_limit_notes(options, trials)]
    plan = SweepPlan(
        name=check_name(options.name or f"{resolved.name}-sweep"),
        id=uuid.uuid4().hex,
        parameters=parameters,
        trials=trials,
        metric=chosen.metric,
        direction=direction_of(chosen.metric, chosen.direction),
        stop=chosen.stop,
        first_look=first_look(chosen, template.steps_total),
        steps_total=template.steps_total,
        sampler=chosen.sampler,
        parallel=chosen.parallel,
        seed=chosen.seed,
        created_at=time.time(),
        priority=options.priority,
        visible_gpus=os.environ.get("CUDA_VISIBLE_DEVICES"),
    )

    def request(values: dict[str, str]) -> Request:
        trial_arguments = with_values(words, values, parameters, reading)
        return build_request(target, trial_arguments, options)

    requests = [request(values) for values in _samples(plan)]
    room = chosen.parallel or _room(requests[0])
    prediction = _predicted(plan, requests, min(room, trials))
    return PreparedSweep(
        plan=replace(plan, predicted=prediction.document()),
        template=template,
        first=requests[0],
        prediction=prediction,
        room=min(room, trials),
        notes=tuple(dict.fromkeys([*notes, *requests[0].warnings])),
    )


def _parameters(chosen: SweepOptions) -> tuple[Parameter, ...]:
    tried = [grid_parameter(name, spec) for name, spec in chosen.grid.items()]
    drawn = [random_parameter(name, spec) for name, spec in chosen.random.items()]
    if not tried and not drawn:
        raise UsageError(
            "Say what is varied: --grid lr=1e-4,3e-4 tries each value, --random wd=0:0.1 draws."
        )
    return (*tried, *drawn)


def _check_once(parameters: Sequence[Parameter]) -> None:
    options = [parameter.option for parameter in parameters]
    twice = next((option for option in options if options.count(option) > 1), None)
    if twice is not None:
        raise UsageError(f"{twice} is varied twice. Give it to --grid or to --random, once.")


def _count(chosen: SweepOptions, parameters: Sequence[Parameter]) -> tuple[int, list[str]]:
    """How many trials, and what to say of that."""
    grid, drawn = (
        len(combinations(parameters)),
        any(not parameter.tried for parameter in parameters),
    )
    trials = chosen.trials or grid or _USUAL_TRIALS
    if not drawn and trials > grid:
        return grid, [f"The grid has {grid} combinations, so {grid} trials are made."]
    if grid and trials < grid:
        return trials, [f"{trials} of the {grid} combinations of the grid are tried."]
    return trials, []


def _limit_notes(options: LaunchOptions, trials: int) -> list[str]:
    """That a limit is of one trial, and what all of them may take."""
    limits = {limit: options.recovery.limits[limit.name] for limit in LIMITS}
    return [
        f"{limit.flag} is the limit of each trial: {trials} trials may take "
        f"{limit.text(trials * most)} together."
        for limit, most in limits.items()
        if most is not None
    ]


def _samples(plan: SweepPlan) -> list[dict[str, str]]:
    """Values of some trials to predict, from the first one on: of the grid, and within ranges."""
    grid: list[Any] = shuffled_grid(plan) or [{}]
    drawn = [parameter for parameter in plan.parameters if not parameter.tried]
    count = min(plan.trials, _MOST_PREDICTED, len(grid) if not drawn else _MOST_PREDICTED)
    return [
        texts_of(plan.parameters, grid[number % len(grid)])
        | {parameter.name: _within(parameter, number, count) for parameter in drawn}
        for number in range(count)
    ]


def _within(parameter: Parameter, number: int, count: int) -> str:
    """A value of a range, evenly from its low end to its high end."""
    if parameter.values:
        return parameter.values[number % len(parameter.values)]
    share = number / max(1, count - 1)
    if parameter.log:
        return parameter.text_of(parameter.low * (parameter.high / parameter.low) ** share)
    return parameter.text_of(parameter.low + share * (parameter.high - parameter.low))


def _room(request: Request) -> int:
    """Trials that have devices at the same time; of a request, before anything is recorded."""
    from workbench.observe.devices import read_devices  # noqa: PLC0415  (NVML)

    cuda = request.device == "cuda"
    devices = request.options.devices or [
        device.name for device in read_devices(request.store.root, cuda=cuda)
    ]
    return max(1, len(devices) // min(len(devices) or 1, request.processes_here))


def _predicted(plan: SweepPlan, requests: Sequence[Request], room: int) -> Prediction:
    predictions = [request.predicted_hours for request in requests]
    hours = [value for value in predictions if value is not None]
    total = mean(hours) * plan.trials if hours and len(hours) == len(predictions) else None
    rate = requests[0].usd_per_hour
    return Prediction(
        trial_hours_low=min(hours) if total is not None else None,
        trial_hours_high=max(hours) if total is not None else None,
        hours=total,
        wall_hours=None if total is None else total / room,
        usd=None if total is None or rate is None else total * rate,
        share=trained_share(plan),
    )


def make(prepared: PreparedSweep) -> SweepFiles:
    """Make the folder of a sweep; its plan is written last. Raises StoreError."""
    files = make_folder(prepared.template.store.root, prepared.plan.name)
    plan = replace(prepared.plan, name=files.name)
    prepare(replace(prepared.template, name="template", store=Store(files.directory)))
    Trials(files.journal, plan, writes=True)
    try:
        write_json_atomic(files.plan_file, plan.document(), indent=2)
    except OSError as error:
        raise StoreError(f"{files.directory} cannot be written: {error}") from error
    return files


def shell(prepared: PreparedSweep) -> str:
    """The first trial's script and arguments, in one line."""
    request = prepared.first
    layout = len(request.layout_arguments)
    return shlex.join([request.recipe or str(request.script), *request.arguments[layout:]])
