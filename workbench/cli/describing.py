"""Options that describe a job, shared by every command that estimates.

A command's options are the fields of one dataclass: an annotation says what Typer shows, the
default is the option's default. A field ``job`` stands for all options of a `Job`, as they are
declared with its parts. `with_description` turns a function of such a value into a Typer command.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Annotated, Any, ClassVar, Protocol, TypeVar, get_type_hints

import typer

from workbench.describe.job import MODEL, Job, default, options
from workbench.describe.option import Declared
from workbench.errors import UsageError


def option(text: str, *names: str, metavar: str | None = None) -> Any:
    """A Typer option with its help."""
    return typer.Option(*names, help=text, metavar=metavar, show_default=True)


@dataclass(frozen=True, kw_only=True)
class Description:
    """A command about a job: the options that were given, by name."""

    HIDDEN: ClassVar[tuple[str, ...]] = ()
    """Options of a job that the command decides itself: they are read, not listed."""
    job: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Those that were given; the others have the defaults of `Job`."""


class Options(Protocol):
    """Any dataclass whose fields are annotated as options."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


Asked = TypeVar("Asked", bound=Options)


def with_description(function: Callable[[Asked], None]) -> Callable[..., None]:
    """Make a command of `function`: one option per field of the class of its argument `asked`."""
    kind: type[Asked] = get_type_hints(function)["asked"]
    hints = get_type_hints(kind, include_extras=True)
    own = [one for one in fields(kind) if one.name != "job"]
    of_job = _names_of_job(kind)

    def command(**values: Any) -> None:
        given = {name: values.pop(name) for name in of_job}
        job = {name: value for name, value in given.items() if value is not None}
        function(kind(**values, **({"job": job} if of_job else {})))

    parameters = [_job_parameter(name, hidden=name in kind.HIDDEN) for name in of_job]  # pyright: ignore[reportUnknownMemberType, reportAttributeAccessIssue]  (only with a job)
    parameters += [
        inspect.Parameter(
            one.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if one.default is MISSING else one.default,
            annotation=hints[one.name],
        )
        for one in own
    ]
    command.__doc__, command.__name__ = function.__doc__, function.__name__
    command.__dict__["__signature__"] = inspect.Signature(parameters)
    return command


def _names_of_job(kind: type) -> list[str]:
    """Options of a job that a command has; what it declares itself has another meaning there."""
    if not issubclass(kind, Description):
        return []
    own = {one.name for one in fields(kind)}
    return [name for name in options() if name not in own]


def _job_parameter(name: str, *, hidden: bool) -> inspect.Parameter:
    """An option of a job as a parameter; None = not given."""
    one = options()[name]
    kind: Any = str if one.option.split else _plain(one)
    is_required = name == MODEL.name
    shown = typer.Option(
        one.switch_flags if one.is_switch else one.flag,
        help=f"{one.help}{_default_text(name)}",
        metavar=one.option.metavar,
        hidden=hidden,
        show_default=False,
    )
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if is_required else None,
        annotation=Annotated[kind if is_required else kind | None, shown],
    )


def _default_text(name: str) -> str:
    value: Any = default(name)
    if value is None or value is False or value == ():
        return ""
    shown = ",".join(value) if options()[name].option.split else value
    return f" [default: {shown}]"


def _plain(one: Declared) -> Any:
    """The type of a value that is given."""
    return next((kind for kind in (bool, int, float) if one.type in {kind, kind | None}), str)


def describe(asked: Description) -> Job:
    """The job.

    Raises:
        UsageError: a value is impossible; the message says what is allowed.
    """
    values = dict(asked.job)
    model = values.pop("model", None)
    if model is None:
        raise UsageError("No model was given. Add --model M; workbench models lists them.")
    return Job.of(model, **values)
