"""`Option`: what every face needs to know of an input beside its type and its default.

A field of a dataclass is declared once, as ``name: Annotated[type, Option(help=...)] = default``.
Command-line options, keywords, signatures, help and the run record are derived from it.
"""

from __future__ import annotations

import functools
import shlex
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any, Literal, TypeVar, cast

from workbench.describe.checks import (
    read_number,
    read_switch,
    read_whole,
    require_several,
    require_type,
)
from workbench.errors import UsageError

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """Metadata of a field that users set."""

    help: str
    """One sentence in the imperative or a list of what is allowed."""
    choices: tuple[Any, ...] = ()
    """All allowed values (None is allowed where it is the default); () = no list."""
    least: int | None = None
    """Smallest allowed number; None = free, or `above` says it."""
    most: int | None = None
    """Largest allowed number; beyond it a size is a typing mistake. None = no limit."""
    beyond: str = ""
    """What to do for more than `most`, in a sentence."""
    above: float | None = None
    """Any larger number is allowed that need not be whole; None = free, or `least` says it."""
    below: float | None = None
    """Any smaller number is allowed that need not be whole; None = all that can be counted."""
    unit: str = ""
    """Of a number, where its name does not say it."""
    flag: str | None = None
    """Name on the command line without its dashes; None = the field's."""
    aliases: tuple[str, ...] = ()
    """Other names there, without their dashes."""
    off_flag: str | None = None
    """Of a switch: its name when it is switched off; None = it is only ever switched on."""
    metavar: str | None = None
    """Placeholder of the value in the command's help."""
    split: Literal["", "commas", "shell", "pairs"] = ""
    """How one text of the command line becomes several values: at commas (whole numbers: rising),
    as a shell would split it, or as repeated NAME=VALUE."""
    singular: str = ""
    """What one of its values is called, where it takes several; "" = the field's name."""
    in_place: bool = False
    """Whether a run that is resumed with another value stays the same run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Marks a field whose value has options of its own: those of a dataclass.

    The value is an instance of the dataclass, or a mapping of the options that were given.
    """

    of: type
    """The dataclass whose declared fields are the options."""
    changes: bool = False
    """They change a value that exists: a switch can be switched off too."""
    only: tuple[str, ...] = ()
    """Fields of the dataclass that are taken here; () = all."""
    is_flat: bool = False
    """Whether its options count among the holder's own (`declared`, `flat_values`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """Marks an option that changes nothing without another fact of the job (see `needed`)."""

    fact: str
    """Another option of a job, a property of its strategy, or ``model.`` and the model's."""
    values: tuple[Any, ...] = ()
    """Those that it goes with; () = any but 0 and none, of a degree any but 1."""
    text: str = ""
    """What it goes with, in words; "" = the fact's name and values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredField:
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
    def off_flag(self) -> str:
        """The flag that switches it off.

        >>> from workbench.describe import Strategy
        >>> declared(Strategy)["sync_every_micro_batch"].off_flag
        '--no-sync'
        """
        return f"--{self.option.off_flag or 'no-' + self.flag.removeprefix('--')}"

    @property
    def title(self) -> str:
        """Its name in a sentence, one value of several where it takes several."""
        return self.option.singular or self.name.replace("_", " ")

    @property
    def is_switch(self) -> bool:
        """Whether it is on or off."""
        return self.type in {bool, bool | None}

    @property
    def may_be_none(self) -> bool:
        """Whether None stands for something: not given, not known, never."""
        return self.default is None or types.NoneType in typing.get_args(self.type)

    @property
    def plain_type(self) -> type:
        """The type of one value as it is typed: bool, int, float or str."""
        return next(
            (plain for plain in (bool, int, float) if self.type in {plain, plain | None}), str
        )

    def names(self, *, changes: bool = False) -> tuple[str, ...]:
        """As Typer takes its names; of a switch that can be switched off, on and off together."""
        can_be_off = self.is_switch and (changes or self.default is True)
        has_off = self.option.off_flag is not None or can_be_off
        first = f"{self.flag}/{self.off_flag}" if has_off else self.flag
        return (first, *(f"--{other}" for other in self.option.aliases))

    def read(self, value: Any) -> Any:
        """A value as its field holds it, from the text or texts that may stand for it.

        Raises:
            UsageError: a quote is left open, NAME=VALUE lacks something, or a text does not stand
                for a number.
        """
        match self.option.split:
            case "commas":
                return self._words(value)
            case "shell":
                return shell_words(value) if isinstance(value, str) else value
            case "pairs":
                return dict(self._pair(text) for text in value)
            case _ if isinstance(value, str) and value == "none" and self.default is None:
                return None
            case _ if isinstance(value, str) and self.plain_type is not str:
                return self._number(value)
            case _:
                is_text = self.type in {str, str | None}  # any other's value is its holder's affair
                kind = self.plain_type
                return (
                    value if kind is str and not is_text else require_type(self.name, kind, value)
                )

    def _number(self, text: str) -> float:
        if self.is_switch:
            return read_switch(self.name, text)
        if self.plain_type is int:
            return read_whole(self.name, text, self.option.least, self.option.most)
        return read_number(self.name, text, self.option.above, self.option.least)

    def _words(self, value: Any) -> tuple[Any, ...] | None:
        if not isinstance(value, str):
            return None if value is None else require_several(self.name, value)
        return self._numbers(value) if self.type == tuple[int, ...] else words(value)

    def _numbers(self, text: str) -> tuple[int, ...]:
        least = self.option.least or 0
        try:
            numbers = sorted({int(word) for word in words(text)})
        except ValueError:
            numbers = [least - 1]
        if numbers and numbers[0] < least:
            raise UsageError(
                f"{self.flag} {text!r}: give whole numbers separated by commas, each at least "
                f"{least}, for example 1,2,4."
            )
        return tuple(numbers)

    def _pair(self, text: str) -> tuple[str, str]:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UsageError(
                f"{self.flag} {text!r}: give {self.option.metavar or 'NAME=VALUE'}. {self.help}"
            )
        return name, value

    @property
    def default_text(self) -> str:
        """The default as help texts show it; "" where there is nothing to show."""
        if self.default is MISSING or not self.default:
            return ""
        default = f"{self.default:.12g}" if self.plain_type is float else self.default
        text = self.flag.removeprefix("--") if default is True else text_of(default)
        return f" [default: {text}]"

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


def several(names: str | Iterable[_T]) -> tuple[str | _T, ...]:
    """Names as they were given: one text with commas, or each by itself.

    >>> several("lambda, aws"), several(["lambda"])
    (('lambda', 'aws'), ('lambda',))
    """
    return words(names) if isinstance(names, str) else tuple(names)


def shell_words(command: str | None) -> tuple[str, ...]:
    """A command line as program and arguments; it never reaches a shell.

    Raises:
        UsageError: a quote is left open.

    >>> shell_words("runpodctl stop pod 'my pod'")
    ('runpodctl', 'stop', 'pod', 'my pod')
    """
    try:
        return tuple(shlex.split(command or ""))
    except ValueError as error:
        raise UsageError(f"The command {command!r} cannot be read: {error}.") from error


def text_of(value: Any) -> str:
    """A value as the command line takes it.

    >>> text_of(("optimizer", "parameters")), text_of([1, 2]), text_of(2)
    ('optimizer,parameters', '1,2', '2')
    """
    parts = cast("Sequence[Any]", value if isinstance(value, tuple | list) else (value,))
    return ",".join(map(str, parts))


@functools.cache
def declared(kind: type) -> Mapping[str, DeclaredField]:
    """The fields of the dataclass `kind` and of its flat groups that users set, by name."""
    options = dict(own_fields(kind))
    for group in _flat_groups(kind).values():
        options |= declared(group)
    return types.MappingProxyType(options)


@functools.cache
def own_fields(kind: type) -> Mapping[str, DeclaredField]:
    """The fields of the dataclass `kind` that users set, without those of its groups."""
    return types.MappingProxyType(
        {
            name: DeclaredField(name=name, type=hint, default=default, option=option)
            for name, hint, default, option in _annotated(kind, Option)
        }
    )


@functools.cache
def _flat_groups(kind: type) -> Mapping[str, type]:
    groups = _annotated(kind, Group)
    return types.MappingProxyType({name: group.of for name, _, _, group in groups if group.is_flat})


@functools.cache
def flat_names(kind: type) -> Mapping[str, str | None]:
    """Every field of `kind` and of its flat groups -> the group that holds it, None = `kind`."""
    inner = _flat_groups(kind)
    names: dict[str, str | None] = {
        field.name: None for field in fields(kind) if field.name not in inner
    }
    names |= {field.name: name for name, group in inner.items() for field in fields(group)}
    return types.MappingProxyType(names)


def flat_values(value: Any) -> dict[str, Any]:
    """The fields of a dataclass's value by name, those of its flat groups among them."""
    return {
        name: getattr(value if group is None else getattr(value, group), name)
        for name, group in flat_names(value.__class__).items()
    }


def replace_flat(value: _T, changes: Mapping[str, Any]) -> _T:
    """A copy with other fields, its own or those of its flat groups."""
    names = flat_names(value.__class__)
    own = {name: change for name, change in changes.items() if names[name] is None}
    for group in {names[name] for name in changes} - {None}:
        inner = {name: change for name, change in changes.items() if names[name] == group}
        own[str(group)] = replace(getattr(value, str(group)), **inner)
    return cast("_T", replace(cast("Any", value), **own))


@functools.cache
def groups(kind: type) -> Mapping[str, type]:
    """The fields of `kind` that stand for options of another dataclass."""
    return types.MappingProxyType({name: group.of for name, _, _, group in _annotated(kind, Group)})


@functools.cache
def flattened(kind: type) -> Mapping[str, tuple[str, DeclaredField]]:
    """Every option of `kind` by name, with the field that holds it.

    The options of a group replace its field.
    """
    plain, grouped = declared(kind), groups(kind)
    flat: dict[str, tuple[str, DeclaredField]] = {}
    for field in fields(kind):
        if field.name in plain:
            flat[field.name] = (field.name, plain[field.name])
        elif field.name in grouped:
            inner = flattened(grouped[field.name])
            flat |= {name: (field.name, option) for name, (_, option) in inner.items()}
    return types.MappingProxyType(flat)


def annotated(kind: type, metadata: type[_T]) -> Mapping[str, _T]:
    """Option -> its metadata of that type: its own, or that of the flat group it stands in."""
    of_option = {name: extra for name, _, _, extra in _annotated(kind, metadata)}
    for name, group in _flat_groups(kind).items():
        shared = of_option.pop(name, None)
        of_option |= {} if shared is None else dict.fromkeys(declared(group), shared)
        of_option |= annotated(group, metadata)
    return types.MappingProxyType(of_option)


def _annotated(kind: type, metadata: type) -> list[tuple[str, Any, Any, Any]]:
    hints = typing.get_type_hints(kind, include_extras=True)
    rows: list[tuple[str, Any, Any, Any]] = []
    for field in fields(kind):
        hint = hints[field.name]
        for extra in getattr(hint, "__metadata__", ()):
            if isinstance(extra, metadata):
                default = field.default
                if field.default_factory is not MISSING:
                    default = field.default_factory()
                rows.append((field.name, hint.__origin__, default, extra))
    return rows
