"""The options of a parser that is at hand: argparse and what derives from it, click, typer."""

# argparse has no public way to its actions
# pyright: reportPrivateUsage=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import argparse
import enum
import re
import typing
from collections.abc import Iterable, Mapping
from typing import Any

from workbench.script_options.declaring_calls import count_of_values
from workbench.script_options.literals import plain
from workbench.script_options.values import Kind, ScriptOption, kind_of

_NO_VALUE = 0


def of_argparse(parser: argparse.ArgumentParser) -> list[ScriptOption]:
    """The options of a parser, in the order and under the headings of its help."""
    own = _dataclass_of(parser)
    options: list[ScriptOption] = []
    usual = {parser._positionals.title, parser._optionals.title}  # noqa: SLF001 - no public way
    for group in parser._action_groups:  # noqa: SLF001
        title = "" if group.title in usual else group.title or ""
        options += [
            _of_action(action, own.get(action.dest, title), parser)
            for action in group._group_actions  # noqa: SLF001
            if action.help != argparse.SUPPRESS and not _is_of_the_page(action)
        ]
    return options


def commands_of(parser: argparse.ArgumentParser) -> list[str]:
    """Names of its sub-commands."""
    kind = argparse._SubParsersAction  # noqa: SLF001
    actions = [action for action in parser._actions if isinstance(action, kind)]  # noqa: SLF001
    return [str(name) for action in actions for name in list[Any](action.choices or ())]


def _is_of_the_page(action: argparse.Action) -> bool:
    """Whether it shows something and ends: --help, --version."""
    kinds = (argparse._HelpAction, argparse._VersionAction, argparse._SubParsersAction)  # noqa: SLF001
    return isinstance(action, kinds)


def _dataclass_of(parser: argparse.ArgumentParser) -> Mapping[str, str]:
    """Of HfArgumentParser: the field of each option -> the name of its dataclass."""
    kinds: Iterable[Any] = getattr(parser, "dataclass_types", ())
    return {
        name: kind.__name__ for kind in kinds for name in getattr(kind, "__dataclass_fields__", ())
    }


def _of_action(
    action: argparse.Action, group: str, parser: argparse.ArgumentParser
) -> ScriptOption:
    names = tuple(action.option_strings) or (action.dest,)
    off = tuple(name for name in names if name.startswith("--no-")) if _is_pair(action) else ()
    optional_bool = action.nargs == "?" and action.const is True  # HfArgumentParser's bools
    switch = (action.nargs == _NO_VALUE and bool(action.option_strings)) or optional_bool
    least, most = (0, 0) if action.nargs == _NO_VALUE else count_of_values(action.nargs)
    if switch and not optional_bool and not off:
        default: Any = False  # the spelling is given or not
    else:
        default = plain(action.default) if action.default is not argparse.SUPPRESS else None
    if action.default is None and not off and switch:
        default = False
    return ScriptOption(
        names=names,
        off=off,
        least=least,
        most=most,
        kind="switch" if switch else kind_of(_type_name(action.type, action.default), names[-1]),
        default=default,
        choices=tuple(map(str, action.choices)) if action.choices is not None else (),
        help=_help(action, parser),
        group=group,
        required=bool(action.required),
        repeated=isinstance(action, argparse._AppendAction | argparse._ExtendAction),  # noqa: SLF001
    )


def _is_pair(action: argparse.Action) -> bool:
    return isinstance(action, argparse.BooleanOptionalAction)


def _type_name(kind: object, default: object = None) -> str:
    """Name of what reads its value."""
    if kind is None:
        return "Path" if hasattr(default, "joinpath") else "str"
    return str(getattr(kind, "__name__", type(kind).__name__))


def _help(action: argparse.Action, parser: argparse.ArgumentParser) -> str:
    try:
        expanded = parser._get_formatter()._expand_help(action) if action.help else ""  # noqa: SLF001
    except (ValueError, KeyError, TypeError):
        expanded = action.help or ""
    return re.sub(r" \(default: [^()]*\)$", "", " ".join(expanded.split()))  # shown beside it


def of_click(command: Any) -> list[ScriptOption]:
    """The options of a command of click or typer."""
    return [
        _of_parameter(parameter)
        for parameter in command.params
        if parameter.expose_value and not getattr(parameter, "hidden", False)
    ]


def _of_parameter(parameter: Any) -> ScriptOption:
    is_word = parameter.param_type_name == "argument"
    kind_name, choices = _type_of(parameter)
    switch = not is_word and bool(
        getattr(parameter, "is_flag", False) or getattr(parameter, "count", False)
    )
    many = parameter.nargs == -1
    off = tuple(parameter.secondary_opts)
    default = None if callable(parameter.default) else _plain_or_none(parameter.default)
    kind: Kind = "switch" if switch else kind_of(kind_name, parameter.name or parameter.opts[0])
    return ScriptOption(
        names=(parameter.name,) if is_word else (*parameter.opts, *off),
        off=off,
        least=0 if switch else (1 if parameter.required or not many else 0),
        most=0 if switch else None if many else parameter.nargs,
        kind=kind,
        default=bool(default) if switch else default,
        choices=choices,
        help=" ".join((getattr(parameter, "help", None) or "").split()),
        group=str(getattr(parameter, "rich_help_panel", None) or ""),
        required=bool(parameter.required),
        repeated=bool(parameter.multiple) if not is_word else False,
    )


def _plain_or_none(value: object) -> Any:
    """A default as text; click's own mark for "not set" is none."""
    if type(value).__module__.rpartition(".")[0] in {"click", "typer._click"}:
        return None
    value = getattr(value, "value", value)  # an Enum's
    return plain(value)


def _type_of(parameter: Any) -> tuple[str, tuple[str, ...]]:
    """Name of the type of one value, and its choices."""
    described = getattr(parameter, "type_descriptor", None)
    if described is None:
        return _click_type(parameter.type)
    kind = described.annotation  # typer without click
    inner = [arg for arg in typing.get_args(kind) if arg is not type(None)]
    if typing.get_origin(kind) is typing.Literal:
        return "str", tuple(map(str, inner))
    kind = inner[0] if inner else kind
    if isinstance(kind, enum.EnumMeta):
        members: list[Any] = list(kind)
        return "str", tuple(str(member.value) for member in members)
    return str(getattr(kind, "__name__", kind)), ()


def _click_type(kind: Any) -> tuple[str, tuple[str, ...]]:
    names: dict[str, str] = {
        "integer": "int",
        "integer range": "int",
        "float range": "float",
        "boolean": "bool",
    }
    if kind.name in {"path", "file", "filename", "directory"}:
        return "Path", ()
    choices = tuple(
        str(getattr(choice, "value", choice)) for choice in getattr(kind, "choices", ())
    )
    return names.get(str(kind.name), str(kind.name)), choices
