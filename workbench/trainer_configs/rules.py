"""Rules between keys of a trainer and fields of a job; each is read and written by one declaration.

A field is an option of a `Job`, or one that `fields` derives from it (``global_batch``, ``lora``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import EllipsisType
from typing import Any, TypeAlias, cast

from workbench.trainer_configs.document import Document, is_off, is_on, value_text

ANY: EllipsisType = ...
"""In a row: whatever the value is. It is neither written nor set."""
MANY = frozenset(range(2, 1 << 16))
"""In a condition: any degree above 1."""
_MOST = 1e15
_PARENT = re.compile(r"\A(self_attn|mlp)\.")
"""What may stand before a module's name, which says no more."""
_AUTOMATIC = {"auto", "-1", ""}
Fields: TypeAlias = Mapping[str, Any]


class InexpressibleError(Exception):
    """No key or value of the trainer says what the fields say."""

    def __init__(self, rule: Rule, fields: Sequence[str]) -> None:
        super().__init__(", ".join(fields))
        self.rule, self.fields = rule, tuple(fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """A key that holds a number, which is a field."""

    key: str
    """Dotted path."""
    field: str
    """Of a job."""
    default: int | None = None
    """What the trainer does without the key, or with "auto" and -1; None = see its preset."""
    other_keys: tuple[str, ...] = ()
    """Names of other releases and scripts; they are read, not written."""
    when: Fields | None = None
    """Other fields that must have these values, or one of a set, for the rule to count."""
    written_when: Fields | None = None
    """As `when`, of writing alone."""
    is_text: bool = False
    """Whether it is a text."""

    @property
    def all_keys(self) -> tuple[str, ...]:
        """It, and its other names."""
        return (self.key, *self.other_keys)

    @property
    def names(self) -> tuple[str, ...]:
        """The fields it sets."""
        return (self.field,)

    def read(self, document: Document, fields: Fields) -> dict[str, Any]:
        """The field.

        Raises:
            UsageError: the value is not a number.
        """
        present = {
            key: value
            for key in (self.key, *self.other_keys)
            if (value := document.get(key)) is not None
        }
        if not applies(self.when, fields):
            return {}
        stated = {key: value for key, value in present.items() if not _is_automatic(value)}
        if not stated:
            return {} if self.default is None else {self.field: self.default}
        key, value = next(iter(stated.items()))
        return {self.field: str(value) if self.is_text else _number(document, key, value)}

    def write(self, fields: Fields, document: Document) -> None:
        """Set the key, where the field has a value."""
        value = fields.get(self.field)
        counts = applies(self.when, fields) and applies(self.written_when, fields)
        if value is not None and counts:
            document.put(self.key, value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Keys whose values together stand for values of fields: the rows of a table.

    Reading takes the first row that the keys match and that agrees with what is known already;
    writing takes the first that the fields match. In a row None is a key that is not there or off.
    """

    keys: tuple[str, ...]
    """Dotted paths."""
    fields: tuple[str, ...]
    """Of a job."""
    rows: tuple[tuple[tuple[Any, ...], tuple[Any, ...]], ...]
    """Values of the keys, and of the fields."""
    when: Fields | None = None
    """As in `Number`."""

    @property
    def all_keys(self) -> tuple[str, ...]:
        """Those of its rows."""
        return self.keys

    @property
    def names(self) -> tuple[str, ...]:
        """The fields it sets."""
        return self.fields

    def read(self, document: Document, fields: Fields) -> dict[str, Any]:
        """The fields of the first row; nothing, and a note, where no row has these values."""
        key_values = [document.get(key) for key in self.keys]
        if not applies(self.when, fields):
            return {}
        for keys, values in self.rows:
            row = dict(zip(self.fields, values, strict=True))
            row = {name: value for name, value in row.items() if value is not ANY}
            matches = all(
                _matches(item, value) for item, value in zip(key_values, keys, strict=True)
            )
            if matches and all(fields.get(name, value) == value for name, value in row.items()):
                return row
        stated = [
            f"{key}={value_text(value)}"
            for key, value in zip(self.keys, key_values, strict=True)
            if not is_off(value)
        ]
        if stated:
            document.notes.append(f"{', '.join(stated)} is not understood and left out")
        return {}

    def write(self, fields: Fields, document: Document) -> None:
        """Set the keys of the first row.

        Raises:
            InexpressibleError: no row has these values of the fields.
        """
        field_values = [fields.get(name) for name in self.fields]
        if not applies(self.when, fields):
            return
        for keys, values in self.rows:
            if all(
                value is ANY or item == value
                for item, value in zip(field_values, values, strict=True)
            ):
                for key, value in zip(self.keys, keys, strict=True):
                    if value is not None and value is not ANY:
                        document.put(key, value)
                return
        raise InexpressibleError(self, self.fields)


def switch(
    key: str, field: str, *, when: Fields | None = None, is_opposite: bool = False
) -> Choice:
    """A key that is on or not there, which is a field that is true or false, or the opposite."""
    rows = (((True,), (not is_opposite,)), ((None,), (is_opposite,)))
    return Choice(keys=(key,), fields=(field,), when=when, rows=rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """A key that holds a list of names, each for a word of a field."""

    key: str
    """Dotted path."""
    field: str
    """Of a job; a tuple of words."""
    words: Mapping[str, tuple[str, ...]]
    """Name -> the words that it stands for; the first with one word alone is written for it."""
    when: Fields | None = None
    """As in `Number`."""
    is_joined: bool = False
    """Whether the names are written as one text with commas."""

    @property
    def all_keys(self) -> tuple[str, ...]:
        """It alone."""
        return (self.key,)

    @property
    def names(self) -> tuple[str, ...]:
        """The fields it sets."""
        return (self.field,)

    def read(self, document: Document, fields: Fields) -> dict[str, Any]:
        """The words, in the order of the table."""
        value = document.get(self.key)
        if is_off(value) or not applies(self.when, fields):
            return {}
        names = [_PARENT.sub("", name) for name in texts(value)]
        unknown = [name for name in names if name not in self.words]
        if unknown:
            document.notes.append(f"{self.key}: {', '.join(unknown)} is not understood")
        chosen = {word for name in names for word in self.words.get(name, ())}
        order = dict.fromkeys(word for words in self.words.values() for word in words)
        return {self.field: tuple(word for word in order if word in chosen)} if chosen else {}

    def write(self, fields: Fields, document: Document) -> None:
        """Set the key to the names.

        Raises:
            InexpressibleError: there is no name for a word.
        """
        if not applies(self.when, fields):
            return
        single: dict[str, str] = {}
        for name, words in self.words.items():
            if len(words) == 1:
                single.setdefault(words[0], name)
        try:
            names = [single[word] for word in fields[self.field]]
        except KeyError:
            raise InexpressibleError(self, (self.field,)) from None
        document.put(self.key, ",".join(names) if self.is_joined else names)


Rule: TypeAlias = Number | Choice | Names


def applies(when: Fields | None, fields: Fields) -> bool:
    """Whether fields have the values that a rule needs."""
    return all(
        fields.get(name) in value if isinstance(value, frozenset) else fields.get(name) == value
        for name, value in (when or {}).items()
    )


def below(prefix: str, rules: Sequence[Rule]) -> tuple[Rule, ...]:
    """The rules for a document that is held under a key of another, with that in front."""
    return tuple(_moved(prefix, rule) for rule in rules)


def _moved(prefix: str, rule: Rule) -> Rule:
    if isinstance(rule, Choice):
        return replace(rule, keys=tuple(prefix + key for key in rule.keys))
    if isinstance(rule, Number):
        other_keys = tuple(prefix + key for key in rule.other_keys)
        return replace(rule, key=prefix + rule.key, other_keys=other_keys)
    return replace(rule, key=prefix + rule.key)


def _matches(value: Any, row: Any) -> bool:
    if row is ANY:
        return True
    if row is None:
        return is_off(value)
    if row is True:
        return is_on(value)
    if row is False:
        return value is not None and is_off(value) and value != ""
    if isinstance(row, list):
        return texts(value) == texts(cast("list[Any]", row))
    return value is not None and str(value).lower() == str(row).lower()


def texts(value: Any) -> list[str]:
    """The parts of a list, or of a text with commas or blanks.

    >>> texts("q_proj,v_proj"), texts(["a"]), texts(None)
    (['q_proj', 'v_proj'], ['a'], [])
    """
    if isinstance(value, list | tuple):
        return [str(item) for item in cast("list[Any]", value)]
    return [] if value is None else str(value).replace(",", " ").split()


def _is_automatic(value: Any) -> bool:
    return str(value).strip().lower() in _AUTOMATIC


def _number(document: Document, key: str, value: Any) -> int:
    """A whole number, also written 5e8; 0 where a count may be none.

    Raises:
        UsageError: it is something else, which the message names.
    """
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise document.wrong(key, "a whole number") from None
    if isinstance(value, bool) or not 0 <= number <= _MOST or number != int(number):
        raise document.wrong(key, "a whole number")
    return int(number)
