"""`Document`: a configuration as nested mappings whose keys are named by dotted paths."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from workbench.describe.checks import switch_of
from workbench.errors import UsageError

_NOTHING = {"", "none", "null"}
_MAX_CHARACTERS = 80  # characters of a value in a message


class Document:
    """The values of a configuration; remembers which keys were asked for."""

    def __init__(self, name: str, values: Mapping[str, Any] | None = None) -> None:
        self.name = name
        self.values: dict[str, Any] = dict(values or {})
        self.known_keys = set[str]()
        self.notes: list[str] = []

    def get(self, key: str) -> Any:
        """The value of a dotted key; None = not there. The key is known from now on."""
        self.known_keys.add(key)
        return self.peek(key)

    def peek(self, key: str) -> Any:
        """The same; neither the key nor what lies below it is known by that."""
        inner: Any = self.values
        for part in key.split("."):
            if not isinstance(inner, Mapping):
                return None
            inner = cast("Mapping[str, Any]", inner).get(part)
        return inner

    def put(self, key: str, value: Any) -> None:
        """Set the value of a dotted key; the mappings around it are made."""
        put_below(self.values, key.split("."), value)

    def move(self, key: str, to: str) -> None:
        """Give a value another key, unless that has one of its own."""
        value = self.get(key)
        if value is not None and self.get(to) is None:
            self.put(to, value)

    def unknown(self) -> Iterator[tuple[str, Any]]:
        """Dotted key and value of everything that no one asked for."""
        for key, value in _leaves("", self.values):
            if not any(key == prefix or key.startswith(f"{prefix}.") for prefix in self.known_keys):
                yield key, value

    def wrong(self, key: str, allowed: str) -> UsageError:
        """The error for a value that cannot be."""
        return UsageError(f"{self.name}: {key} is {value_text(self.get(key))}; allowed: {allowed}.")


def put_below(values: dict[str, Any], path: Sequence[str], value: Any) -> None:
    """Set a value in nested mappings; those on the way are made."""
    *outer, last = path
    for part in outer:
        existing: Any = values.get(part)
        inner = cast("dict[str, Any]", existing) if isinstance(existing, dict) else {}
        values[part] = inner
        values = inner
    values[last] = value


def is_off(value: Any) -> bool:
    """Whether a value says no, in any spelling.

    >>> is_off("none"), is_off(None), is_off(0)
    (True, True, False)
    """
    nothing = value is None or (isinstance(value, str) and value.lower() in _NOTHING)
    return nothing or _switch(value) is False


def is_on(value: Any) -> bool:
    """Whether a value says yes, in any spelling."""
    return _switch(value) is True


def _switch(value: Any) -> bool | None:
    """Unlike on a command line, 0 and 1 are numbers here: a trainer's rate or count, no switch."""
    if isinstance(value, str):
        return None if value in {"0", "1"} else switch_of(value)
    return value if isinstance(value, bool) else None


def value_text(value: Any) -> str:
    """A value in a message.

    >>> value_text("bf16"), value_text(4)
    ('bf16', '4')
    """
    text = str(value)
    return text if len(text) <= _MAX_CHARACTERS else f"{text[:_MAX_CHARACTERS]}…"


def _leaves(prefix: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, inner in cast("Mapping[str, Any]", value).items():
            yield from _leaves(f"{prefix}.{key}" if prefix else str(key), inner)
    elif prefix:
        yield prefix, value
