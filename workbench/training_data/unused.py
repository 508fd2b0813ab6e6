"""What rows hold that is not trained on, told once with the number of its rows."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from workbench.training_data.values import Turn

_NAMED = 12


def unused_columns(fields: Mapping[str, Any], used: Collection[str]) -> tuple[str, ...]:
    """Columns with a value that are not among the `used` ones, in words."""
    unused = [name for name in fields if name not in used and not is_nothing(fields[name])]
    return tuple(f"column {name!r}" for name in unused)


def unused_keys(turns: Collection[Turn]) -> tuple[str, ...]:
    """Keys of messages that nothing reads, in words, each once."""
    keys = dict.fromkeys([key for turn in turns for key in turn.unused])
    return tuple(f"key {key!r} of messages" for key in keys)


def is_nothing(value: object) -> bool:
    """Whether a value says nothing: as null, an empty text or an empty list."""
    if isinstance(value, str):
        return not value.strip()
    return value is None or (isinstance(value, list | dict) and not value)  # pyright: ignore[reportUnknownArgumentType]


def unused_note(counts: Mapping[str, int]) -> tuple[str, ...]:
    """The sentence of what is not used, each with its number of rows; none where all is.

    >>> unused_note({"column 'id'": 3, "key 'date' of messages": 1})
    ("Not used: column 'id' (3 rows), key 'date' of messages (1 row).",)
    """
    if not counts:
        return ()
    named = [
        f"{name} ({count:,} row{'' if count == 1 else 's'})"
        for name, count in list(counts.items())[:_NAMED]
    ]
    more = [f"and {len(counts) - _NAMED:,} more"] * (len(counts) > _NAMED)
    return (f"Not used: {', '.join([*named, *more])}.",)
