"""Which runs of a table, and in what order: ``strategy=ddp outcome=failed tag=x loss<2``."""

from __future__ import annotations

import math
import operator
import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from workbench.describe.checks import switch_of
from workbench.errors import UnknownNameError, UsageError
from workbench.observe.rows import COLUMNS

_SHORT = {
    "loss": "loss_last",
    "tag": "tags",
    "ranks": "processes",
    "step": "steps",
    "step_seconds": "step_seconds_median",
    "memory": "memory_bytes",
    "created": "created_at",
    "started": "started_at",
    "ended": "ended_at",
}
_ORDERS: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_CONDITION = re.compile(r"([A-Za-z_]\w*)(<=|>=|!=|=|<|>|~)(.*)", re.DOTALL | re.ASCII)
_UNKNOWN = ("", "n/a", "none")


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """One condition on a run's row."""

    field: str
    """One of `rows.COLUMNS`."""
    sign: str
    """``=``, ``!=``, ``~`` (contains), ``<``, ``<=``, ``>`` or ``>=``."""
    value: str
    """What it is compared with; ``n/a`` stands for unknown."""

    def holds(self, row: Mapping[str, Any]) -> bool:
        """Whether a row fulfils it. Of an unknown value only ``=n/a`` and ``!=`` hold."""
        value = row.get(self.field)
        if isinstance(value, list):
            texts = [str(item).lower() for item in value]  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        else:
            texts = [] if value is None else [str(value).lower()]
        expected = self.value.lower()
        if self.sign == "~":
            return any(expected in text for text in texts)
        if self.sign in {"=", "!="}:
            unknown = expected in _UNKNOWN
            equal = not texts if unknown else any(_same(text, expected) for text in texts)
            return equal == (self.sign == "=")
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        return _ORDERS[self.sign](value, float(self.value))


def _same(actual: str, expected: str) -> bool:
    if actual == expected or (
        actual in {"true", "false"} and switch_of(expected) is switch_of(actual)
    ):
        return True
    try:
        return float(actual) == float(expected)
    except ValueError:
        return False


def conditions(text: str) -> list[Condition]:
    """The conditions of a text; all of them have to hold. Nothing in it is ever executed.

    >>> [one.sign for one in conditions("strategy=ddp loss<2 name~'my run'")]
    ['=', '<', '~']

    Raises:
        UsageError: a word is no condition, or compares with what is no number.
        UnknownNameError: a field that runs do not have.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"{text!r} cannot be read: {error}. Close the quote.") from error
    return [_condition(word) for word in words]


def _condition(word: str) -> Condition:
    match = _CONDITION.fullmatch(word)
    if match is None:
        raise UsageError(
            f"{word!r} is not a condition. Write FIELD, one of = != ~ < <= > >=, and a value, for "
            "example strategy=ddp loss<2 tag=baseline name~gpt."
        )
    field, sign, value = match.groups()
    if sign in _ORDERS:
        try:
            float(value)
        except ValueError:
            raise UsageError(
                f"{word!r} compares with {value!r}, which is not a number. Use =, != or ~ for text."
            ) from None
    return Condition(field=named(field), sign=sign, value=value)


def named(field: str) -> str:
    """The row's key that people mean by `field`.

    Raises:
        UnknownNameError: none.
    """
    key = _SHORT.get(field, field)
    if key not in COLUMNS:
        raise UnknownNameError.near("field of runs", field, {*COLUMNS, *_SHORT})
    return key


def choose(
    rows: Iterable[dict[str, Any]],
    *,
    where: str = "",
    tag: str | None = None,
    archived: bool = False,
    sort: str | None = None,
) -> list[dict[str, Any]]:
    """Rows that fulfil everything asked for, in the order asked for.

    Args:
        rows: Of `index.table`.
        where: Conditions, see `conditions`.
        tag: A tag that they have.
        archived: Archived ones too; they are also shown where `where` asks for them.
        sort: A field, smallest first; with a ``-`` before it, largest first. Unknown values come
            last either way; the loss of a run counts as infinite once it was NaN. None = as they
            are.

    Raises:
        UsageError: `where` or `sort` cannot be read.
    """
    criteria = conditions(where)
    if tag is not None:
        criteria.append(Condition(field="tags", sign="=", value=tag))
    with_archived = archived or any(condition.field == "archived" for condition in criteria)
    chosen = [row for row in rows if with_archived or not row["archived"]]
    chosen = [row for row in chosen if all(condition.holds(row) for condition in criteria)]
    if sort is None:
        return chosen
    key, down = named(sort.removeprefix("-")), sort.startswith("-")
    sortable = [row for row in chosen if row.get(key) is not None]
    sortable.sort(key=lambda row: _order(_ranked(row, key)), reverse=down)
    return sortable + [row for row in chosen if row.get(key) is None]


def _ranked(row: Mapping[str, Any], key: str) -> Any:
    """What a row is sorted by: the last finite loss of a run that diverged would be flattering."""
    diverged = key in {"loss_last", "loss_best"} and row.get("nonfinite_step") is not None
    return math.inf if diverged else row[key]


def _order(value: Any) -> tuple[int, float, str]:
    number = isinstance(value, int | float)
    return (0, float(value), "") if number else (1, 0.0, str(value).lower())
