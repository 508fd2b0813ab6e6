"""Answers for agents: a command's own ``--json``, made in this process and kept short."""

from __future__ import annotations

import contextlib
import io
import json
import math
import threading
from collections.abc import Collection, Sequence
from typing import Any, cast

import typer

from workbench.cli.commands import load
from workbench.errors import UsageError

MOST_CHARACTERS = 3500
"""Of one answer: about 900 tokens."""
_ONE_AT_A_TIME = threading.Lock()
_WRONG_USAGE: Any = typer.BadParameter.__mro__[1]  # click's, or Typer's own since 0.2x
_ALL = 10**9
_BOUNDS = (*((rows, _ALL) for rows in (12, 6, 3, 2, 1)), (1, 24), (1, 12), (1, 6), (1, 3))
"""Of lists, and of objects; the first with which an answer fits."""
_TEXT = 400
_ALL_DIGITS_FROM = 1e5  # from here on all digits before the point are kept: Unix times, bytes


def run_command(name: str, words: Sequence[str]) -> str:
    """What ``workbench NAME WORDS`` prints on stdout.

    Raises:
        WorkbenchError: as the command does.
        UsageError: its options are wrong.
    """
    written = io.BytesIO()
    out = io.TextIOWrapper(written, "utf-8", write_through=True)
    with _ONE_AT_A_TIME, contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        try:
            load(name).main(list(words), prog_name=f"workbench {name}", standalone_mode=False)
        except typer.Exit:
            pass  # the answer says what is wrong
        except _WRONG_USAGE as error:
            message = error.format_message()
            raise UsageError(f"{message} See the tool help, with command={name!r}.") from error
    return written.getvalue().decode("utf-8", errors="replace")


def ask(name: str, words: Sequence[str]) -> Any:
    """The JSON document of ``workbench NAME WORDS --json``."""
    own = words[: list(words).index("--")] if "--" in words else words
    if {"--help", "-h"} & set(own):
        raise UsageError(f"--help cannot be given here. Use the tool help, with command={name!r}.")
    return json.loads(run_command(name, ["--json", *words]))


def check_values(name: str, options: Sequence[str]) -> None:
    """Refuse options of which the last lacks its value: the word after them would be taken for it.

    Raises:
        UsageError: it does.
    """
    with_value = {
        word
        for parameter in load(name).params
        if not getattr(parameter, "is_flag", True)
        for word in parameter.opts
    }
    words = iter(options)
    for word in words:
        if word in with_value and next(words, None) is None:
            raise UsageError(f"{word} needs a value. See the tool help, with command={name!r}.")


def short(document: Any, *, leave_out: Collection[str] = ()) -> str:
    """The document in at most `MOST_CHARACTERS`: no nulls, rounded numbers, bounds."""
    text = ""
    for bounds in _BOUNDS:
        shortened = _light(document, bounds, frozenset(leave_out))
        text = json.dumps(shortened, ensure_ascii=False, separators=(",", ":"))
        if len(text) <= MOST_CHARACTERS:
            return text
    return text[:MOST_CHARACTERS] + "… (cut)"


def last_rows(columns: Sequence[str], rows: Sequence[str]) -> str:
    """A table in at most `MOST_CHARACTERS`: all its columns, and as many of the last rows as fit.

    Raises:
        UsageError: not even one row fits.
    """
    for left_out in range(max(1, len(rows))):
        table = {"columns": columns, "rows": rows[left_out:]}
        more = {"rows_before": left_out} if left_out else {}
        text = json.dumps(table | more, ensure_ascii=False, separators=(",", ":"))
        if len(text) <= MOST_CHARACTERS:
            return text
    raise UsageError(f"{len(columns)} columns are too long for one answer. Name fewer with keys.")


def last_lines(text: str) -> str:
    """The end of a log, in at most `MOST_CHARACTERS`."""
    cut = len(text) - MOST_CHARACTERS
    return text if cut <= 0 else f"({cut:,} characters before)\n{text[cut:]}"


def _light(value: Any, bounds: tuple[int, int], leave_out: frozenset[str]) -> Any:
    rows, members = bounds
    if isinstance(value, dict):
        known = [
            (key, item)
            for key, item in cast("dict[str, Any]", value).items()
            if key not in leave_out and item is not None
        ]
        light = {key: _light(item, bounds, leave_out) for key, item in known[:members]}
        more = len(known) - len(light)
        return light | {"…": f"{more} more"} if more else light
    if isinstance(value, list):
        all_rows = cast("list[Any]", value)
        first_rows = [_light(row, bounds, leave_out) for row in all_rows[:rows]]
        return (
            first_rows if len(all_rows) <= rows else [*first_rows, f"… {len(all_rows) - rows} more"]
        )
    if isinstance(value, str):
        return value if len(value) <= _TEXT else f"{value[:_TEXT]}…"
    return _rounded(value) if isinstance(value, float) else value


def _rounded(value: float) -> float | int | str:
    if not math.isfinite(value):
        return str(value)
    rounded = float(f"{value:.4g}") if abs(value) < _ALL_DIGITS_FROM else round(value)
    return int(rounded) if rounded == int(rounded) else rounded
