"""``actions.jsonl``: what a program did with a run, and for whom."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

from workbench.errors import StoreError
from workbench.store.files import append_line, parse_line, read_tail
from workbench.store.layout import RunPaths
from workbench.store.schema import ActionLine
from workbench.store.secrets import redact_arguments

_READ_BYTES, _SHOWN = 100_000, 50


def record_action(
    paths: RunPaths, *, by: str, action: str, arguments: Sequence[str], limits: str
) -> None:
    """Append a line to the run's journal of actions.

    Raises:
        StoreError: the run directory cannot be written.
    """
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
    """The latest lines of the journal that are whole (`schema.ActionLine`), in order."""
    lines = read_tail(paths.actions, _READ_BYTES).splitlines()
    read = [parse_line(line.encode())[0] for line in lines]
    return [one for one in read if one is not None][-_SHOWN:]
