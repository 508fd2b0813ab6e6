"""`Option`: what every face needs to know of an input beside its type and its default.

A field of a dataclass is declared once, as ``name: Annotated[type, Option(help=...)] = default``.
Command-line options, keywords, signatures, help and the run record are derived from it.
"""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, Literal, cast

from workbench.describe.checks import require_at_least, require_at_most, require_choice


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """Metadata of a field that users set."""

    help: str
    """One sentence in the imperative or a list of what is allowed."""
    choices: tuple[Any, ...] = ()
    """All allowed values (None is allowed where it is the default); () = no list."""
    least: int | None = None
    """Smallest allowed whole number; None = not a whole number, or free."""
    most: int | None = None
    """Largest allowed whole number; beyond it a size is a typing mistake. None = no limit."""
    unit: str = ""
    """Of a number, where its name does not say it."""
    flag: str | None = None
    """Name on the command line without its dashes; None = the field's."""
    off_flag: str | None = None
    """Of a switch: its name when it is switched off; None = it is only ever switched on."""
    metavar: str | None = None
    """Placeholder of the value in the command's help."""
    split: Literal["", "commas", "shell", "pairs"] = ""
    """How one text of the command line becomes several values: at commas, as a shell would split
    it, or as repeated NAME=VALUE."""
    singular: str = ""
    """What one of its values is called, where it takes several; "" = the field's name."""
    in_place: bool = False
    """Whether a run that is resumed with another value stays the same run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Marks a field whose value has options of its own: those of a dataclass."""

    of: type
    """The dataclass whose declared fields are the options."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """A field as it was declared."""

    name: str
    """The field's."""
    type: Any
    """Its type, without the metadata."""
    default: Any
    """Its default; MISSING when it has none or makes one."""
    option: Option
    """What it is for."""

    @property
    def flag(self) -> str:
        """Its name on the command line.

        >>> from workbench.describe import Strategy
        >>> declared(Strategy)["meta_init"].flag
        '--meta-init'
        """
        return f"--{self.option.flag or self.name.replace('_', '-')}"

    @property
    def title(self) -> str:
        """Its name in a sentence, one value of several where it takes several."""
        return self.option.singular or self.name.replace("_", " ")

    @property
    def is_switch(self) -> bool:
        """Whether it is on or off."""
        return self.type in {bool, bool | None}

    @property
    def switch_flags(self) -> str:
        """As Typer takes the names of a switch: on, or on and off."""
        return f"{self.flag}/--{self.option.off_flag}" if self.option.off_flag else self.flag

    @property
    def help(self) -> str:
        """The help, with the unit."""
        return f"{self.option.help}{f' [{self.option.unit}]' if self.option.unit else ''}"


def words(text: str) -> tuple[str, ...]:
    """The parts between commas.

    >>> words("optimizer, parameters,")
    ('optimizer', 'parameters')
    """
    return tuple(word.strip() for word in text.split(",") if word.strip())


@functools.cache
def declared(kind: type) -> Mapping[str, Declared]:
    """The fields of the dataclass `kind` that users set, by name, in their order."""
    return types.MappingProxyType(
        {
            name: Declared(name=name, type=hint, default=default, option=option)
            for name, hint, default, option in _annotated(kind, Option)
        }
    )


def check_declared(value: Any) -> None:
    """Hold every declared field of a dataclass's value against its choices and its least number.

    Raises:
        UsageError: one of them is not allowed; the message names the field and what is.
    """
    for name, title, option, is_optional in _limits(value.__class__):
        given: Any = getattr(value, name)
        if given is None and is_optional:
            continue
        if option.choices:
            parts = cast("tuple[Any, ...]", given if option.split else (given,))
            for part in parts:
                require_choice(title, part, option.choices)
        if option.least is not None:
            require_at_least(name, given, option.least)
        if option.most is not None:
            require_at_most(name, cast("int", given), option.most)


@functools.cache
def _limits(kind: type) -> tuple[tuple[str, str, Option, bool], ...]:
    """Name, title, metadata and whether None is allowed, of the fields that have a limit."""
    return tuple(
        (name, one.title, one.option, one.default is None)
        for name, one in declared(kind).items()
        if one.option.choices or one.option.least is not None
    )


@functools.cache
def groups(kind: type) -> Mapping[str, type]:
    """The fields of `kind` that stand for options of another dataclass."""
    return types.MappingProxyType({name: group.of for name, _, _, group in _annotated(kind, Group)})


def _annotated(kind: type, metadata: type) -> list[tuple[str, Any, Any, Any]]:
    hints = typing.get_type_hints(kind, include_extras=True)
    found: list[tuple[str, Any, Any, Any]] = []
    for field in fields(kind):
        hint = hints[field.name]
        for extra in getattr(hint, "__metadata__", ()):
            if isinstance(extra, metadata):
                default = field.default
                if field.default_factory is not MISSING:
                    default = field.default_factory()
                found.append((field.name, hint.__origin__, default, extra))
    return found
