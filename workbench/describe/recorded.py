"""Described values read back from JSON, of this version's fields or another's."""

from __future__ import annotations

import functools
import typing
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar, cast

_T = TypeVar("_T")


def from_document(kind: type[_T], document: Mapping[str, Any]) -> _T:
    """A value of the dataclass `kind` from what `dataclasses.asdict` made of one.

    A field that is missing has its default; one that is unknown is left out.

    Raises:
        TypeError: a field without a default is missing.
        UsageError: a value is not allowed in this version.
    """
    hints = _hints(kind)
    present = {name: document[name] for name in hints if name in document}
    return kind(**{name: _value(hints[name], value) for name, value in present.items()})


@functools.cache
def _hints(kind: type) -> Mapping[str, Any]:
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(cast("Any", kind))}


def _value(hint: Any, value: Any) -> Any:
    """JSON has lists where fields have tuples, and objects where they have dataclasses."""
    choices = typing.get_args(hint) or (hint,)
    if isinstance(value, Mapping):
        kind = next((choice for choice in choices if is_dataclass(choice)), None)
        document = cast("Mapping[str, Any]", value)
        return document if kind is None else from_document(cast("type[Any]", kind), document)
    if not isinstance(value, list):
        return value
    return tuple(_value(choices[0], item) for item in cast("list[Any]", value))
