"""Options of a command, derived from the declarations of what it takes.

An argument of a command's function is a Typer parameter, a dataclass of such parameters, or is
annotated with a `Group`: the declared options of a dataclass, read back as an instance of it or as
a mapping of those that were given. `with_options` makes a Typer command of the function.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, get_type_hints

import typer
from typer.models import OptionInfo, ParameterInfo

from workbench.cli import help_pages
from workbench.cli.completion import words_of
from workbench.cli.tables import JsonOption
from workbench.describe import Strategy
from workbench.describe.implementation import ImplementationAssumptions
from workbench.describe.job import Job, options
from workbench.describe.option import (
    DeclaredField,
    Group,
    Option,
    declared,
    flattened,
    groups,
    text_of,
)
from workbench.describe.option_limits import check_declared, checked_field
from workbench.describe.placement import Placement
from workbench.describe.stack import ALL, CALIBRATION
from workbench.describe.workload import Workload
from workbench.errors import UsageError
from workbench.estimate.cost.plan import RunPlan
from workbench.launching.prepare.options import LaunchOptions
from workbench.recover.policy import Recovery
from workbench.store import measurements
from workbench.store.runs import Store
from workbench.store.stack_calibrations import calibrated


def option(text: str, *names: str, metavar: str | None = None) -> Any:
    """A Typer option with its help."""
    return typer.Option(*names, help=text, metavar=metavar, show_default=True)


@dataclass(frozen=True, kw_only=True)
class Description:
    """A command about a job: the options that were given, by name."""

    HIDDEN: ClassVar[tuple[str, ...]] = ()
    """Options of a job that the command decides itself: they are read, not listed."""
    job: Annotated[Mapping[str, Any], Group(of=Job)] = field(default_factory=dict[str, Any])
    """Those that were given; the others have the defaults of `Job`."""
    config: Annotated[
        Path | None,
        option("Read the job from a trainer's configuration; options count before it."),
    ] = None
    """torchtitan's TOML, YAML of torchtune, Axolotl or LLaMA-Factory, a command line …"""
    like: Annotated[
        str | None,
        option(
            "Describe what this run trains, or this script that workbench measure has run.",
            metavar="RUN",
        ),
    ] = None
    """In the place of a model; its step gives the defaults of the other options."""
    calibration: Annotated[str, CALIBRATION] = ALL
    """What was measured of the trainer's stack corrects the estimates."""
    as_json: JsonOption = False

    def __post_init__(self) -> None:
        check_declared(self)


_DEFAULT = re.compile(r" \[default: [^\]]*\]")  # in words; a run that exists keeps what it has
_TOPIC_OF = {
    "model": help_pages.WHAT,
    "strategy": help_pages.HOW,
    "wrap": help_pages.HOW,
    "trainer": help_pages.TRAINER,
    "kernels": help_pages.TRAINER,
}
_TOPIC_OF_KIND = {
    Workload: help_pages.WHAT,
    Placement: help_pages.WHERE,
    Strategy: help_pages.HOW,
    Recovery: help_pages.LIMITS,
    ImplementationAssumptions: help_pages.TRAINER,
}
TOKENS = Option(help="Tokens to train on: 300B, 1.5T, 2e9.")
_RUN = declared(RunPlan)


@dataclass(frozen=True, kw_only=True)
class RunDescription(Description):
    """A command about a run of some length."""

    tokens: Annotated[str | None, TOKENS] = None
    epochs: Annotated[float | None, Option(help="Or passes over --dataset-tokens.", above=0)] = None
    dataset_tokens: Annotated[str | None, Option(help="Tokens of one epoch.")] = None
    interruption_hours: Annotated[float | None, _RUN["interruption_hours"].option] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Argument:
    """An argument of a command's function: its parameters, and how it is read from them."""

    parameters: list[inspect.Parameter]
    """As Typer takes them."""
    read: Callable[[Mapping[str, Any]], Any]
    """The argument, from the values of all parameters by name."""


def with_options(function: Callable[..., None]) -> Callable[..., None]:
    """Make a command of `function`: each of its arguments gives the command its options.

    What the function or a dataclass declares itself has another meaning there: a group leaves an
    option of that name out.
    """
    hints = get_type_hints(function, include_extras=True)
    own = inspect.signature(function).parameters
    arguments = {
        name: _argument(name, hints[name], parameter.default, set(own))
        for name, parameter in own.items()
    }

    def command(**values: Any) -> None:
        function(**{name: argument.read(values) for name, argument in arguments.items()})

    command.__doc__, command.__name__ = function.__doc__, function.__name__
    parameters = [parameter for argument in arguments.values() for parameter in argument.parameters]
    command.__dict__["__signature__"] = inspect.Signature(parameters)
    return command


def _argument(
    name: str, hint: Any, default: Any, own: set[str], hidden: tuple[str, ...] = ()
) -> _Argument:
    for extra in getattr(hint, "__metadata__", ()):
        if isinstance(extra, Group):
            return _of_group(hint.__origin__, extra, own, hidden)
        if isinstance(extra, Option):
            return _of_option(
                DeclaredField(name=name, type=hint.__origin__, default=default, option=extra)
            )
    if is_dataclass(hint):
        return _of_fields(hint)
    for extra in getattr(hint, "__metadata__", ()):
        if isinstance(extra, ParameterInfo) and (kind := _number_kind(hint.__origin__)):
            return _of_number(name, kind, default, extra)
    return _Argument(
        parameters=[_keyword_only(name, default, hint)], read=lambda values: values[name]
    )


def _keyword_only(name: str, default: Any, hint: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)


def _number_kind(hint: Any) -> type | None:
    return next((kind for kind in (int, float) if hint in {kind, kind | None}), None)


def _of_number(name: str, kind: type, default: Any, info: ParameterInfo) -> _Argument:
    """A number of the command itself: taken as text, and refused in our own words."""
    option_info, title = copy(info), name
    option_info.min = option_info.max = None
    if isinstance(info, OptionInfo):
        names = (info.default, *(info.param_decls or ()))  # Annotated: the first is its default
        flags = (each for each in names if isinstance(each, str) and each.startswith("--"))
        title = next(flags, f"--{name.replace('_', '-')}")
        option_info.metavar = info.metavar or f"<{kind.__name__}>"
    default_text = default if default in {None, inspect.Parameter.empty} else f"{default:.12g}"
    least, most = (None if limit is None else int(limit) for limit in (info.min, info.max))
    limits = Option(help="", least=least, most=most)
    field = DeclaredField(name=title, type=kind, default=default, option=limits)

    def read(values: Mapping[str, Any]) -> Any:
        text = values[name]
        return None if text is None else checked_field(field, field.read(text))

    optional: Any = str if default is inspect.Parameter.empty else str | None
    return _Argument(
        parameters=[_keyword_only(name, default_text, Annotated[optional, option_info])], read=read
    )


def _of_option(field: DeclaredField) -> _Argument:
    """A declared option of the command itself; it keeps its default where it is not given."""

    def read(values: Mapping[str, Any]) -> Any:
        value = values[field.name]
        return field.default if value is None else checked_field(field, field.read(value))

    return _Argument(
        parameters=[_parameter(field.name, field, hidden=False, changes=False)], read=read
    )


def _of_fields(kind: Any) -> _Argument:
    """A dataclass whose fields are annotated as arguments."""
    hints = get_type_hints(kind, include_extras=True)
    own = {field.name for field in fields(kind)}
    hidden = kind.HIDDEN if issubclass(kind, Description) else ()
    inner: dict[str, _Argument] = {}
    for attribute in fields(kind):
        default = inspect.Parameter.empty if attribute.default is MISSING else attribute.default
        inner[attribute.name] = _argument(
            attribute.name, hints[attribute.name], default, own, hidden
        )
    # An option of two groups is one parameter, as the later declares it; both read its value.
    parameters = {
        parameter.name: parameter
        for argument in inner.values()
        for parameter in argument.parameters
    }
    return _Argument(
        parameters=list(parameters.values()),
        read=lambda values: kind(
            **{name: argument.read(values) for name, argument in inner.items()}
        ),
    )


def _of_group(kind: Any, group: Group, own: set[str], hidden: tuple[str, ...]) -> _Argument:
    """The declared options of a dataclass; None = not given."""
    group_options = {
        name: (holder, field)
        for name, (holder, field) in options_of(group.of).items()
        if name not in own and (not group.only or holder in group.only)
    }

    def read(values: Mapping[str, Any]) -> Any:
        group_values = keywords(group.of, {name: values[name] for name in group_options})
        return instance(group.of, group_values) if kind is group.of else group_values

    parameters = [
        _parameter(
            name, field, hidden=name in hidden, changes=group.changes, topic=_topic(group.of, name)
        )
        for name, (_, field) in group_options.items()
    ]
    return _Argument(parameters=parameters, read=read)


def _topic(kind: type, name: str) -> str | None:
    """Below which heading the help lists an option; None = the command's own."""
    if kind is not Job and kind is not LaunchOptions:
        return None
    if name in _TOPIC_OF:
        return _TOPIC_OF[name]
    if kind is LaunchOptions and name in declared(LaunchOptions):
        return help_pages.LAUNCH
    return next(topic for part, topic in _TOPIC_OF_KIND.items() if name in declared(part))


def options_of(kind: type) -> Mapping[str, tuple[str, DeclaredField]]:
    """Every option of `kind` by name, with the field that holds it."""
    if kind is Job:
        return {name: (name, field) for name, field in options().items()}
    return flattened(kind)


def keywords(kind: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """The keywords of `kind` from the options that were given; None = not given."""
    grouped: Mapping[str, type] = {} if kind is Job else groups(kind)
    result: dict[str, Any] = {}
    for name, value in values.items():
        if value is None:
            continue
        keyword, field = options_of(kind)[name]
        place = result.setdefault(keyword, {}) if keyword in grouped else result
        place[name] = field.read(value)
    return result


def instance(kind: Any, values: Mapping[str, Any]) -> Any:
    """A value of `kind` from its keywords; a group is one too where its field is annotated so."""
    hints, field_values = get_type_hints(kind), dict(values)
    for name, inner in groups(kind).items():
        if name in values and hints[name] is inner:
            field_values[name] = instance(inner, values[name])
    return kind(**field_values)


def _parameter(
    name: str, field: DeclaredField, *, hidden: bool, changes: bool, topic: str | None = None
) -> inspect.Parameter:
    several = field.option.split == "pairs"
    # `DeclaredField.read` refuses in our own words.
    as_text = field.option.split or field.plain_type in {int, float}
    kind: Any = list[str] if several else str if as_text else field.plain_type
    option = typer.Option(
        *field.names(changes=changes),
        help=_DEFAULT.sub("", field.help) if changes else f"{field.help}{field.default_text}",
        metavar=field.option.metavar or (f"<{field.plain_type.__name__}>" if as_text else None),
        hidden=hidden,
        show_default=False,
        rich_help_panel=topic,
        autocompletion=words_of(field),
    )
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[kind | None, option],
    )


def describe(description: Description, *, layout_is_open: bool = False) -> Job:
    """The job; `layout_is_open`: a plan chooses how it is spread.

    Raises:
        UsageError: a value is impossible; the message says what is allowed.
    """
    values = dict(description.job)
    if description.config is not None:
        if description.like is not None:
            raise UsageError("--config and --like both say what is trained. Leave one out.")
        from workbench.trainer_configs import job_from_config  # noqa: PLC0415  (the mappings)

        job = job_from_config(description.config, layout_is_open=layout_is_open, **values)
        return calibrated(job, description.calibration)
    model = values.pop("model", None)
    if description.like is not None:
        if model is not None:
            raise UsageError("--model and --like both say what is trained. Leave one out.")
        same = measurements.like(Store(), description.like)
        model, job_values = same.pop("model"), same | values
    else:
        job_values = values
    if model is None:
        raise UsageError(
            "The model is missing. Add --model M (workbench models lists them), --config FILE (a "
            "trainer's configuration), or --like RUN (a run, or a script that was measured)."
        )
    job = Job.from_options(model, job_values, typed=values, layout_is_open=layout_is_open)
    return calibrated(job, description.calibration)


def as_options(strategy: Strategy) -> str:
    """What to type for `strategy`: its name, and the options in which it differs from the name's.

    >>> as_options(Strategy.parse("fsdp", 8).with_options(recompute="full", meta_init=True))
    '--strategy fsdp --recompute full --meta-init'
    >>> as_options(Strategy.parse("ddp", 2).with_options(sync_every_micro_batch=False))
    '--strategy ddp --no-sync'
    """
    options, changed = strategy.options(), strategy.options_beside_name()
    typed = ["--strategy", strategy.name]
    for name, option in declared(Strategy).items():
        value: Any = options[name]
        if name not in changed:
            continue
        if value is False:
            typed.append(option.off_flag)
        else:
            typed += [option.flag] if value is True else [option.flag, text_of(value)]
    return " ".join(typed)
