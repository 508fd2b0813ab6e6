"""A config file's mapping, read key by key: wrong values are named, what is left is kept."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from workbench.describe.checks import switch_of
from workbench.errors import UsageError

_MAX_BYTES = 256 << 10  # a config has some hundred lines; YAML is read at 100 kB a second
_MAX_DEPTH = 32
_MOST_VALUES = 10_000  # of YAML with aliases
_MAX_CHARACTERS = 300  # characters of a wrong value in a message
_MOST = 1e15  # of anything that a config counts


def read_text(path: Path) -> str:
    """The text of a config file.

    Raises:
        UsageError: it cannot be read, is not text, or is too large for a config.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
        text = data.decode("utf-8-sig")
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}. Give a config file.") from error
    except ValueError as error:
        raise UsageError(f"{path} cannot be read as text: {error}. Give a config file.") from error
    if len(data) > _MAX_BYTES:
        raise UsageError(f"{path} is larger than {_MAX_BYTES} bytes. Give a config file.")
    return text


def load(path: Path) -> dict[str, Any]:
    """The mapping that a YAML or JSON file holds.

    Raises:
        UsageError: the file cannot be read, is neither, or holds something else.
    """
    text = read_text(path)
    import yaml  # noqa: PLC0415 - comes with accelerate, and only this needs it

    try:
        values: Any = json.loads(text) if path.suffix == ".json" else _safe_load(text)
        values = _named(values)
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        why = " ".join(str(error).split())[:_MAX_CHARACTERS]
        raise UsageError(f"{path} is neither YAML nor JSON: {why}. Give a config file.") from error
    if not isinstance(values, dict):
        raise UsageError(f"{path} holds no mapping of keys to values. Give a config file.")
    return cast("dict[str, Any]", values)


def _safe_load(text: str) -> Any:
    """Plain YAML, not deep, and not large once its aliases are unfolded, as a few lines can be."""
    import yaml  # noqa: PLC0415

    events = cast("Iterator[Any]", yaml.parse(text, yaml.SafeLoader))  # pyright: ignore[reportUnknownMemberType]
    depth, has_aliases = 0, False
    for event in map(type, events):
        has_aliases |= event is yaml.AliasEvent
        depth += issubclass(event, yaml.CollectionStartEvent)
        depth -= issubclass(event, yaml.CollectionEndEvent)
        if depth > _MAX_DEPTH:
            raise ValueError(f"it is nested more than {_MAX_DEPTH} deep")
    if has_aliases and _unfolded(yaml.compose(text, yaml.SafeLoader), {}) > _MOST_VALUES:  # pyright: ignore[reportUnknownMemberType]
        raise ValueError(f"its aliases (*name) unfold to more than {_MOST_VALUES:,} values")
    return yaml.safe_load(text)


def _unfolded(node: Any, counts: dict[int, int]) -> int:
    """How many values a node of YAML holds where each alias is what it stands for.

    Raises:
        ValueError: one holds itself.
    """
    if id(node) not in counts:
        counts[id(node)] = 0  # until it is known
        content: Any = node.value
        inner = list[Any]()
        if isinstance(content, list):
            for item in cast("list[Any]", content):
                inner += item if isinstance(item, tuple) else [item]
        counts[id(node)] = 1 + sum(_unfolded(each, counts) for each in inner)
    elif not counts[id(node)]:
        raise ValueError("an alias (*name) stands within what it names")
    return counts[id(node)]


def _named(values: Any) -> Any:
    """`values` with every key a text, as YAML does not promise."""
    if isinstance(values, dict):
        items = cast("dict[Any, Any]", values).items()
        return {str(key): _named(value) for key, value in items}
    if isinstance(values, list):
        return [_named(value) for value in cast("list[Any]", values)]
    return values


class Reader:
    """One mapping of a file: hands out its values, knows which were asked for."""

    def __init__(self, path: Path, values: Mapping[str, Any], prefix: str = "") -> None:
        self.path, self.values, self.prefix = path, dict(values), prefix
        self.known = set[str]()

    def wrong(self, key: str, allowed: str) -> UsageError:
        """The error for a value that cannot be."""
        value_text = _shortened(self.values.get(key))
        return UsageError(f"{self.path}: {self.prefix}{key} is {value_text}; allowed: {allowed}.")

    def take(self, key: str, default: Any = None) -> Any:
        """The value as it stands; the key is known from now on."""
        self.known.add(key)
        return self.values.get(key, default)

    def flag(self, key: str) -> bool | None:
        """A switch, also in the spellings of environment variables; None = not there, or auto."""
        value = self.take(key)
        if value is None or value == "auto":
            return None
        is_on = switch_of(str(value))
        if is_on is None:
            raise self.wrong(key, "true or false")
        return is_on

    def number(self, key: str) -> int | None:
        """A whole number above 0, also written 5e8; None = not there, or "auto"."""
        value = self.take(key)
        if value is None or value == "auto":
            return None
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            raise self.wrong(key, "a whole number above 0, or auto") from None
        if isinstance(value, bool) or not 1 <= number <= _MOST or number != int(number):
            raise self.wrong(key, "a whole number above 0, or auto")
        return int(number)

    def choice(self, key: str, allowed: Mapping[str, Any]) -> Any:
        """What one of the names in `allowed` stands for; None = not there."""
        value = self.take(key)
        if value is None:
            return None
        if str(value).upper() not in allowed:
            raise self.wrong(key, ", ".join(allowed))
        return allowed[str(value).upper()]

    def part(self, key: str) -> Reader:
        """A mapping inside; an empty one if it is not there."""
        value = self.take(key)
        if value is not None and not isinstance(value, Mapping):
            raise self.wrong(key, "a mapping")
        return Reader(self.path, cast("Mapping[str, Any]", value or {}), f"{self.prefix}{key}.")

    def unknown(self) -> Iterator[tuple[str, Any]]:
        """Dotted name and value of each key no one asked for."""
        for key, value in self.values.items():
            if key not in self.known:
                yield from _leaves(self.prefix + key, value)


def _shortened(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_CHARACTERS else f"{text[:_MAX_CHARACTERS]}…"


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for key, inner in cast("Mapping[str, Any]", value).items():
            yield from _leaves(f"{name}.{key}", inner)
    else:
        yield name, value
