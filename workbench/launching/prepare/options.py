"""`LaunchOptions`: everything that is chosen for a launch beside the script and its arguments.

Declared once. The keywords of `wb.launch`, `wb.request` and `Run.resume`, the command-line options
of ``workbench launch`` and ``workbench resume``, what run.json keeps and how it is read back are
derived from these fields, so that none of them can forget one.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from numbers import Integral, Real
from typing import Annotated, Any, Generic, ParamSpec, Protocol, TypeVar, cast

from workbench.describe import Cluster, Strategy
from workbench.describe.checks import require_at_least, require_type
from workbench.describe.job import Job
from workbench.describe.option import Group, Option, declared, groups
from workbench.describe.option_limits import check_value
from workbench.describe.other_names import unknown_option
from workbench.describe.stack import ALL, CALIBRATION
from workbench.errors import UsageError
from workbench.recover.policy import Recovery, recovery_of
from workbench.storage.remote import checked_address
from workbench.store.runs import Store

_P = ParamSpec("_P")
_R_co = TypeVar("_R_co", covariant=True)
_R = TypeVar("_R")
_NO_RECOVERY = Recovery()
Launched = str | os.PathLike[str] | Job | Callable[..., object]
"""What can be started: a script's path or a recipe's name, a job, or a function."""
PRIORITY = Option(help="In the queue: higher ones start first.", least=0, most=100)
DEVICES = Option(
    help="GPUs by index or UUID; on CPU slots of cores [default: free ones].",
    metavar="D,D",
    split="commas",
    in_place=True,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOptions:
    """How, where and with what beside it a script is started. None = chosen for the host."""

    job: Job | None = None
    """What, how and where, as it was described: gives strategy, machines and a recipe's arguments.
    What is given beside it counts."""
    strategy: Annotated[
        str | Strategy | None,
        Option(
            help="single, ddp, fsdp, fsdp-grad-op, hsdp, zero1-3, tp, pp, cp, dp2-tp2 …"
            " [default: ddp]."
        ),
    ] = None
    """A name, or a `Strategy` with its options."""
    options: Annotated[Mapping[str, Any], Group(of=Strategy)] = field(
        default_factory=dict[str, Any]
    )
    """Options of the strategy by name, such as ``recompute`` and ``offload``."""
    wrap: Annotated[str | None, Option(help="FSDP: class of the model's blocks.")] = None
    """Recipes and models of Hugging Face know their own."""
    processes: Annotated[
        int | None,
        Option(help="Processes [default: the strategy's, all GPUs, or 2 on CPU].", flag="nproc"),
    ] = None
    """Ranks on each machine."""
    nodes: Annotated[
        int, Option(help="Equal machines that all see the store; this one is node 0.")
    ] = 1
    """Number of machines."""
    address: Annotated[str | None, Option(help="Where the other machines reach this one.")] = None
    """Of node 0; needed with several machines."""
    devices: Annotated[Sequence[str], DEVICES] = ()
    """See ``workbench queue list`` for who holds which; () = the first of the GPUs that no run
    holds, and on CPU all cores."""
    share: Annotated[
        bool, Option(help="Use devices even if another run holds them.", in_place=True)
    ] = False
    """Without it two runs never get one GPU."""
    queue: Annotated[
        bool, Option(help="File it in the queue; it starts when its devices are free.")
    ] = False
    """See `workbench.queueing`."""
    priority: Annotated[int, PRIORITY] = 0
    """Among equal ones the first filed starts first."""
    cpu: Annotated[bool, Option(help="Use CPU ranks even if there are GPUs.")] = False
    """Where there is no GPU the ranks are on the CPU anyway."""
    name: Annotated[str | None, Option(help="Display name of the run.")] = None
    """Default: the script's name and the strategy."""
    port: Annotated[int, Option(help="Rendezvous port; 0 = a free one.", in_place=True)] = 0
    """On node 0."""
    capture: Annotated[
        bool, Option(help="Observe loss and steps in the script.", in_place=True)
    ] = True
    """Without it the logs are still kept per rank."""
    warm: Annotated[
        bool,
        Option(
            help="Fork launcher and ranks from a process that has torch imported.", in_place=True
        ),
    ] = False
    """Same configuration and losses, seconds sooner; cold where it would not be the same."""
    environment: Annotated[
        Mapping[str, str],
        Option(
            help="Variables for the ranks, by name.",
            flag="env",
            metavar="NAME=VALUE",
            split="pairs",
            in_place=True,
        ),
    ] = field(default_factory=dict[str, str])
    """Added to the ranks' environment."""
    recovery: Annotated[Recovery, Group(of=Recovery)] = _NO_RECOVERY
    """Restarts, pre-emption, idle machines, as ``{"restarts": 3}``; default: none of it."""
    trackers: Annotated[
        Sequence[str],
        Option(
            help="tensorboard, mlflow, trackio, wandb (offline); '' = none.",
            flag="tracker",
            metavar="T,T",
            split="commas",
            in_place=True,
        ),
    ] = ()
    """Fed from the run's files beside the training."""
    notify: Annotated[
        Sequence[str],
        Option(
            help="Who is told of findings and the end: names, all or none (`workbench notify`).",
            metavar="NAME,NAME",
            split="commas",
            in_place=True,
        ),
    ] = ("all",)
    """Names of targets that `workbench notify add` keeps; without any, no message is sent."""
    mirror: Annotated[
        str | None,
        Option(
            help="Copy checkpoints and metrics to s3://…, gs://… or a folder while it trains.",
            metavar="URL",
            in_place=True,
        ),
    ] = None
    """Kept in step by a process of its own; see `workbench push` and `resume URL/RUN`."""
    grid_gco2e_per_kwh: Annotated[
        float | None,
        Option(
            help="Emissions of the electricity there [default: world average].",
            flag="grid-co2e",
            unit="g/kWh",
            above=0,
            in_place=True,
        ),
    ] = None
    """For the run's CO2e; the place of a machine is not known, so give it where it matters."""
    calibration: Annotated[str, CALIBRATION] = ALL
    """See `workbench calibrate`; a run starts the same with any."""
    store: Annotated[
        str | os.PathLike[str] | Store | None,
        Option(help="Run store [default: $WORKBENCH_STORE or ./runs].", metavar="DIR"),
    ] = None
    """Folder of runs."""
    cluster: Cluster | None = None
    """The machines that an engine will give; None = this host and its equals."""

    def __post_init__(self) -> None:
        """None stands for the default of what is a collection, a number or a value of its own."""
        for name, default in _EMPTY.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, default)
        for name, (kinds, said) in _VALUES.items():
            if not isinstance(value := getattr(self, name), kinds):
                raise UsageError(f"{name} must be {said}, not {value!r}.")
        for name, kind in _KINDS.items():
            object.__setattr__(self, name, _of_kind(name, kind, getattr(self, name)))
        for name in ("trackers", "notify", "devices"):
            several = declared(LaunchOptions)[name].read(getattr(self, name))
            object.__setattr__(self, name, tuple(map(_word, several)))
        object.__setattr__(self, "environment", _written(self.environment))
        check_value("priority", self.priority, PRIORITY)
        object.__setattr__(self, "recovery", recovery_of(self.recovery))
        if self.grid_gco2e_per_kwh is not None:
            grid = declared(LaunchOptions)["grid_gco2e_per_kwh"].option
            check_value("grid_gco2e_per_kwh", self.grid_gco2e_per_kwh, grid)

    def document(self) -> dict[str, Any]:
        """Their part of run.json; the environment still holds its secrets.

        Strategy, device and name stand there as the launch resolved them.
        """
        return {
            **{name: getattr(self, name) for name in _RECORDED},
            "recovery": self.recovery.document(),
            "trackers": list(self.trackers),
            "devices": list(self.devices),
            "notify": list(self.notify),
            "mirror": self.mirror and checked_address(self.mirror),
            "extra_environment": dict(self.environment),
        }

    @classmethod
    def from_keywords(cls, values: Mapping[str, Any]) -> LaunchOptions:
        """From keyword arguments. Raises UsageError: one of them is unknown."""
        check_names(values)
        return cls(**values)


_EMPTY: dict[str, Any] = {
    "nodes": 1,
    "port": 0,
    "priority": 0,
    "options": {},
    "environment": {},
    "trackers": (),
    "devices": (),
    "notify": ("all",),
    "recovery": _NO_RECOVERY,
}
_KINDS: dict[str, type] = {
    **dict.fromkeys(("processes", "nodes", "port", "priority"), int),
    **dict.fromkeys(("share", "queue", "cpu", "capture", "warm"), bool),
    **dict.fromkeys(("wrap", "address", "name", "mirror"), str),
}
"""Options whose values are of one kind, whatever is said of them later."""
_VALUES: dict[str, tuple[Any, str]] = {
    "job": (Job | None, "a Job, as wb.Job.of('llama-3-8b') or a plan's .job"),
    "strategy": (str | Strategy | None, "a name or a Strategy"),
    "options": (Mapping, "a dict, as {'recompute': 'full'}"),
    "cluster": (Cluster | None, "a Cluster, as Cluster.rented('h100', 8)"),
}
"""Option -> what it may be, and how that is said."""


def _of_kind(name: str, kind: type, value: Any) -> Any:
    """Python's own value of that kind. Raises UsageError: it is another."""
    if kind is str and isinstance(value, os.PathLike):
        value = os.fspath(cast("os.PathLike[str]", value))
    if kind is str and not isinstance(value, str | None):
        raise UsageError(f"{name} must be a text, not {value!r}.")
    if kind is not int or value is None:
        return require_type(name, kind, value)
    if not isinstance(value, bool) and isinstance(value, Integral):
        value = int(value)  # of numpy and its like
    require_at_least(_TITLES.get(name, name), value, -sys.maxsize)
    return value


_TITLES = {"processes": "The number of processes", "nodes": "The number of nodes"}


def _word(value: Any) -> Any:
    """A device's number as it is named."""
    if isinstance(value, bool):
        return value
    return str(int(value)) if isinstance(value, Integral) else value


def _written(environment: Mapping[str, Any]) -> dict[str, str]:
    """Variables as a process gets them: numbers are written out, as a script's arguments are.

    Raises:
        UsageError: a name or a value is no text.
    """
    if not isinstance(environment, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(
            f"The variables are a dict of names and texts, as {{'SEED': '1'}}, not {environment!r}."
        )
    written = dict[str, str]()
    for name, value in environment.items():
        is_number = type(value) is not bool and isinstance(value, Real)
        text = str(cast("object", value)) if is_number or isinstance(value, os.PathLike) else value
        if not isinstance(name, str) or not isinstance(text, str) or "\0" in text:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(
                f"The variable {name!r} is {value!r}. Give names and values as text, as "
                "{'SEED': '1'}."
            )
        written[name] = text
    return written


_UNDECLARED = {
    "job": "A described Job: gives the strategy, the machines and a recipe's arguments.",
    "cluster": "The machines that an engine will give.",
}
_RECORDED = (
    *("wrap", "port", "capture", "warm", "nodes", "address", "share"),
    *("grid_gco2e_per_kwh", "calibration"),
)
NAMES = tuple(field.name for field in fields(LaunchOptions))
"""Keywords of a launch."""
FIXED = frozenset({"store", "cluster", "queue", "priority"})
"""Those that a resumed run keeps, or has nothing of."""
IN_PLACE = frozenset({"recovery"}) | {
    name for name, field in declared(LaunchOptions).items() if field.option.in_place
}
"""Those that a resumed run may change and stay the same run."""


def check_names(values: Mapping[str, Any], beside: Collection[str] = ()) -> None:
    """Refuse keywords that no launch has, and that are not `beside` its own.

    Raises:
        UsageError: one of them is unknown, or stands in a group of options.
    """
    for name, value in values.items():
        if name in NAMES or name in beside:
            continue
        for group, kind in groups(LaunchOptions).items():
            if name in declared(kind):
                raise UsageError(f"{name} is one of {group}: give {group}={{{name!r}: {value!r}}}.")
        raise unknown_option("launch option", name, (*NAMES, *beside))


class Launching(Protocol[_P, _R_co]):
    """A function of a script or a job, its arguments and the options of a launch as keywords."""

    def __call__(
        self,
        target: Launched,
        arguments: Sequence[Any] = (),
        *args: _P.args,
        **kwargs: _P.kwargs,
    ) -> _R_co:
        """The function."""
        ...


class _Keywords(Generic[_P]):
    """Lends the keywords of a class to a function, for type checkers and for `help`."""

    def __init__(self, kind: Callable[_P, LaunchOptions]) -> None:
        self._kind = kind

    def __call__(
        self, function: Callable[[Launched, Sequence[Any], LaunchOptions], _R]
    ) -> Launching[_P, _R]:
        def launching(
            target: Launched,
            arguments: Sequence[Any] = (),
            *_: Any,
            **options: Any,
        ) -> _R:
            return function(target, arguments, LaunchOptions.from_keywords(options))

        launching.__name__, launching.__qualname__ = function.__name__, function.__qualname__
        launching.__module__ = function.__module__
        launching.__doc__ = (function.__doc__ or "").rstrip() + "\n\n" + keyword_help()
        own = list(inspect.signature(launching, eval_str=True).parameters.values())[:2]
        result = inspect.signature(function, eval_str=True).return_annotation
        signature = inspect.Signature([*own, *keywords()], return_annotation=result)
        launching.__dict__["__signature__"] = signature
        return cast("Launching[_P, _R]", launching)


with_launch_options = _Keywords(LaunchOptions)
"""Decorator: the last argument of the function becomes the keywords of a launch."""


def keywords(*, changes: bool = False) -> list[inspect.Parameter]:
    """The fields as keyword parameters; `changes`: each may be left as it is, which is None."""
    hints = inspect.signature(LaunchOptions, eval_str=True).parameters
    made = list[inspect.Parameter]()
    for name in (name for name in NAMES if not (changes and name in FIXED)):
        hint = hints[name].annotation
        plain = getattr(hint, "__origin__", hint) if hasattr(hint, "__metadata__") else hint
        default = None if changes else getattr(LaunchOptions(), name)
        made.append(
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=plain
            )
        )
    return made


def keyword_help() -> str:
    """One line per keyword, for docstrings."""
    plain, grouped = declared(LaunchOptions), groups(LaunchOptions)
    lines = ["Options:"]
    for name in NAMES:
        if name in plain:
            lines.append(f"    {name}: {plain[name].help}")
        elif name in grouped:
            inner = ", ".join(declared(grouped[name]))
            lines.append(f"    {name}: Of {grouped[name].__name__}: {inner}.")
        else:
            lines.append(f"    {name}: {_UNDECLARED[name]}")
    return "\n".join(lines) + "\n"
