"""``actions.jsonl``: what a program did with a run, and for whom."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from workbench.errors import StoreError
from workbench.store.files import append_line, parse_line, read_tail
from workbench.store.journal_schema import ActionLine
from workbench.store.layout import RunPaths
from workbench.store.secrets import redact_arguments

_READ_BYTES, _MAX_ACTIONS, _TEXT, _MARKS = 100_000, 50, 80, 20


def record_action(
    paths: RunPaths, *, by: str, action: str, arguments: Sequence[str], limits: str
) -> None:
    """Append a line to the run's journal of actions. Raises StoreError: it cannot be written."""
    line: ActionLine = {
        "time": time.time(),
        "by": by,
        "action": action,
        "arguments": redact_arguments(arguments),
        "limits": limits,
    }
    try:
        append_line(paths.actions, json.dumps(line).encode())
    except OSError as error:
        raise StoreError(f"{paths.actions} cannot be written: {error.strerror}.") from error


def read_actions(paths: RunPaths) -> list[dict[str, Any]]:
    """The latest lines of the journal that are whole (`journal_schema.ActionLine`), in order."""
    lines = read_tail(paths.actions, _READ_BYTES).splitlines()
    read = [parse_line(line.encode())[0] for line in lines]
    return [action for action in read if action is not None][-_MAX_ACTIONS:]


def outcome(line: Mapping[str, Any]) -> str:
    """The end of the sentence of a line that says what came of something asked; "" = of others.

    >>> outcome({"action": "set", "step": 120, "done": True})
    ' (done after step 120)'
    """
    if "done" not in line or not isinstance(line.get("step"), int):
        return ""
    if line["done"] is True:
        return f" (done after step {line['step']:,})"
    return f" (not done at step {line['step']:,}: {line.get('why') or 'n/a'})"


def step_marks(paths: RunPaths) -> list[dict[str, Any]]:
    """What was done at step boundaries, as the curves are marked: ``{"step", "text", "time"}``.

    The latest are given.
    """
    done = [action for action in read_actions(paths) if outcome(action) and action["done"] is True]
    return [
        {
            "step": action["step"],
            "text": " ".join(map(str, (action.get("action"), *(action.get("arguments") or ()))))[
                :_TEXT
            ],
            "time": action.get("time"),
        }
        for action in done[-_MARKS:]
    ]
