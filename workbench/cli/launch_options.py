"""The options of a launch on a command line, derived from `LaunchOptions`.

`with_launch_options` gives a Typer command one option per field; `with_changes` does it for
``workbench resume``, where each of them may be left as the run has it.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING
from typing import Annotated, Any, Union, cast, get_args, get_origin, get_type_hints

import typer

from workbench.describe import Strategy
from workbench.describe.option import Declared, declared, words
from workbench.errors import UsageError
from workbench.launch.options import LaunchOptions, flat
from workbench.recover.policy import Recovery
from workbench.recover.policy import words as shell_words


def with_launch_options(function: Callable[..., None]) -> Callable[..., None]:
    """Make a command of `function`, whose argument ``options`` is a `LaunchOptions`."""
    return _with_options(function, "options", _launch_options)


def _launch_options(given: Mapping[str, Any]) -> LaunchOptions:
    values = keywords(given)
    recovery = Recovery(**values.pop("recovery", {}))
    return LaunchOptions(**values, recovery=recovery)


def with_changes(function: Callable[..., None]) -> Callable[..., None]:
    """Make a command of `function`, whose argument ``changes`` holds the options that were given.

    Where the run is stored cannot be changed: the command has its own ``--store``.
    """
    return _with_options(function, "changes", keywords, changes=True)


def _with_options(
    function: Callable[..., None],
    name: str,
    read: Callable[[dict[str, Any]], Any],
    *,
    changes: bool = False,
) -> Callable[..., None]:
    own = inspect.signature(function).parameters
    hints = get_type_hints(function, include_extras=True)
    parameters = list[inspect.Parameter]()
    names = [one for one in flat() if one not in own]
    for parameter in own.values():
        if parameter.name == name:
            parameters += [_parameter(one, changes=changes) for one in names]
        else:
            hint = hints[parameter.name]
            parameters.append(
                parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hint)
            )

    def command(**values: Any) -> None:
        given = {one: values.pop(one) for one in names}
        function(**values, **{name: read(given)})

    command.__doc__, command.__name__ = function.__doc__, function.__name__
    command.__dict__["__signature__"] = inspect.Signature(parameters)
    return command


def _parameter(name: str, *, changes: bool) -> inspect.Parameter:
    keyword, one = flat()[name]
    default = None if changes or keyword == "options" else _shown(one)
    kind = one.type if not one.option.split else list[str] if one.option.split == "pairs" else str
    kind = str if name in {"strategy", "store"} else _without_none(kind)
    if default is None:
        kind = kind | None
    option = typer.Option(
        *_names(one, changes=changes or default is True),
        help=one.help,
        metavar=one.option.metavar,
        show_default=not changes,
    )
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[kind, option],
    )


def _without_none(kind: Any) -> Any:
    if get_origin(kind) not in {Union, types.UnionType}:
        return kind
    return next(one for one in get_args(kind) if one is not type(None))


def _shown(one: Declared) -> Any:
    """The default as the command line has it: no values, no text."""
    return None if one.option.split or one.default is MISSING else one.default


def _names(one: Declared, *, changes: bool) -> tuple[str, ...]:
    if one.option.off_flag:
        return (one.switch_flags,)
    if one.is_switch and changes:  # it can be switched off too
        return (f"{one.flag}/--no-{one.flag.removeprefix('--')}",)
    return (one.flag,)


def keywords(given: Mapping[str, Any]) -> dict[str, Any]:
    """The keywords of a launch from the options that were given; None = not given."""
    found: dict[str, Any] = {}
    inner: dict[str, dict[str, Any]] = {"options": {}, "recovery": {}}
    for name, value in given.items():
        if value is None:
            continue
        keyword, one = flat()[name]
        if keyword in inner:
            inner[keyword][name] = _read(one, value)
        else:
            found[keyword] = _read(one, value)
    if inner["options"]:
        found["options"] = inner["options"]
    if inner["recovery"]:
        found["recovery"] = inner["recovery"]
    return found


def _read(one: Declared, value: Any) -> Any:
    match one.option.split:
        case "commas":
            return words(value)
        case "shell":
            return shell_words(value)
        case "pairs":
            return dict(_pair(one, text) for text in value)
        case _:
            return None if value == "none" and one.default is None else value


def _pair(one: Declared, text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UsageError(f"{one.flag} {text!r}: give NAME=VALUE, as in {one.flag} DATA=/data.")
    return name, value


def as_options(strategy: Strategy) -> str:
    """What to type for `strategy`: its name, and the options in which it differs from the name's.

    >>> as_options(Strategy.parse("fsdp", 8).with_options(recompute="full", meta_init=True))
    '--strategy fsdp --recompute full --meta-init'
    >>> as_options(Strategy.parse("ddp", 2).with_options(sync_every_micro_batch=False))
    '--strategy ddp --no-sync'
    """
    plain = Strategy.parse(strategy.name, strategy.world_size)
    typed = ["--strategy", strategy.name]
    for name, one in declared(Strategy).items():
        value: Any = getattr(strategy, name)
        if value is False and one.option.off_flag:
            typed.append(f"--{one.option.off_flag}")
        elif value != getattr(plain, name):
            typed.append(one.flag)
            words = value if one.option.split == "commas" else (value,)
            typed += [] if value is True else [",".join(map(str, cast("tuple[Any, ...]", words)))]
    return " ".join(typed)
