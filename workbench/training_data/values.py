"""What a row of training data is, and what is known of a whole file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast


class RowError(ValueError):
    """Why one row cannot be trained on: the rest of the sentence "row 7: …"."""


class EmptyRowError(RowError):
    """The row has nothing to train on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where rows are read from."""

    path: Path
    """File or folder as it was given."""
    kind: str
    """jsonl, json, csv, parquet, text or arrow (a folder of `datasets`)."""
    files: tuple[Path, ...]
    """Files with the rows, in order."""
    notes: tuple[str, ...] = ()
    """What was decided while looking, one sentence each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row as it stands in the file."""

    number: int
    """Line at which it begins; in a JSON list or a table its place; from 1."""
    fields: Mapping[str, Any] | None = None
    """Column -> value; None = it cannot be read."""
    problem: str = ""
    """Why it cannot be read."""
    has_gaps: bool = False
    """Whether nulls were left out of objects inside of its columns, where tables fill gaps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One message of a conversation."""

    role: str
    """system, user, assistant or tool."""
    content: str
    """Its text."""
    extra: Mapping[str, Any] | None = None
    """Other keys that a template may read, such as tool_calls."""
    learned: bool = field(default=True, compare=False)
    """Whether an answer counts in the loss; the others are only read."""
    unused: tuple[str, ...] = field(default=(), compare=False)
    """Keys with a value that nothing reads."""

    @property
    def calls(self) -> Any:
        """Its tool calls; None = it has none."""
        return (self.extra or {}).get("tool_calls")

    def message(self, *, arguments_as_text: bool = False) -> dict[str, Any]:
        """As a chat template takes it; arguments of calls as an object, or as JSON text."""
        message = {"role": self.role, "content": self.content, **(self.extra or {})}
        if arguments_as_text and self.calls:
            message["tool_calls"] = [_with_text(call) for call in self.calls]
        return message

    def with_other_calls(self) -> Turn:
        """With other functions and arguments: of a template that shows calls, another text."""
        calls = list(map(_other, self.calls))
        return replace(self, extra={**(self.extra or {}), "tool_calls": calls})


def _other(call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    if not isinstance(function, dict):  # a few leave the level out
        key = "name" if function is None else "function"
        return {**call, key: f"{call.get(key)}_"}
    fields = cast("dict[str, Any]", function)
    arguments = fields.get("arguments")
    if isinstance(arguments, dict):  # some templates write these alone
        arguments = {**cast("dict[str, Any]", arguments), "another": ""}
    named = {"name": f"{fields.get('name')}_", "arguments": arguments}
    return {**call, "function": {**fields, **named}}


def _with_text(call: dict[str, Any]) -> dict[str, Any]:
    """The call with its arguments as JSON text."""
    function: dict[str, Any] = call.get("function") or {}
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        return call
    return {
        **call,
        "function": {**function, "arguments": json.dumps(arguments, ensure_ascii=False)},
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One row as it is trained on: a text, a conversation, or a prompt with two answers."""

    text: str = ""
    """Raw text; "" = it is a conversation."""
    turns: tuple[Turn, ...] = ()
    """The conversation; of a preference the prompt and the chosen answer."""
    rejected: tuple[Turn, ...] = ()
    """Of a preference the rejected answer, without the prompt."""
    prompt_turns: int = 0
    """Of a preference how many of the turns are the prompt."""
    tools: tuple[Mapping[str, Any], ...] = ()
    """Definitions of the tools that the assistant may call."""
    unused: tuple[str, ...] = ()
    """What its row holds besides, in words: columns, and keys of messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowResult:
    """What became of one row: an example, or why there is none."""

    row: int
    """Its number."""
    example: Example | None = None
    """None = the row is empty or broken."""
    problem: str = ""
    """Why it is skipped."""
    is_empty: bool = False
    """Whether it only has nothing in it."""
    unused: tuple[str, ...] = ()
    """What the row holds and is not trained on, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataReport:
    """What is in a file of training data, before anything starts."""

    path: Path
    """File or folder."""
    kind: str
    """How it is stored."""
    form: str
    """How its rows are meant: a name of `FORMS`."""
    columns: tuple[str, ...]
    """Names of the columns, in the order of the first rows."""
    rows: int
    """All rows, those that are skipped too."""
    examples: int
    """Rows that can be trained on."""
    first: tuple[RowResult, ...]
    """The first three of them."""
    duplicates: int | None
    """Examples equal to an earlier one; None = too many rows to know."""
    empty: int
    """Rows with nothing in them."""
    broken: int
    """Rows that cannot be trained on."""
    problems: tuple[RowResult, ...]
    """The first empty and broken rows, each with its sentence."""
    notes: tuple[str, ...]
    """What was decided, one sentence each."""
