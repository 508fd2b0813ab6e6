"""How often a run was started and which starts it made by itself: ``attempts.jsonl``."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from workbench.store.files import LineReader
from workbench.store.layout import RunPaths
from workbench.store.schema import BY_HAND
from workbench.store.shapes import LAST_SECOND

PORT_TAKEN = "The rendezvous port was taken; started again on a free one."
"""`AttemptLine.why` of an attempt that only has another port."""


def read_attempts(paths: RunPaths) -> list[dict[str, Any]]:
    """The lines of ``attempts.jsonl`` that are whole, in order; the last may lack its newline."""
    reader, attempts = LineReader(paths.attempts), list[dict[str, Any]]()
    while lines := reader.read() or reader.read_unfinished():
        for line in lines:
            with contextlib.suppress(KeyError, TypeError, ValueError, OverflowError):
                numbers = {"attempt": int(line["attempt"]), "time": float(line["time"])}
                if line["event"] in {"start", "end"}:
                    attempts.append({**line, **numbers})
    return attempts


def read_starts(paths: RunPaths) -> list[dict[str, Any]]:
    """The lines of starts, in order."""
    return [line for line in read_attempts(paths) if line["event"] == "start"]


def attempts_of(paths: RunPaths) -> int:
    """How often the run was started; 0 = not yet. Of a copy also lines of other versions count."""
    reader, numbers = LineReader(paths.attempts), [0]
    while lines := reader.read():
        numbers += [line["attempt"] for line in lines if type(line.get("attempt")) is int]
    return max(numbers)


def start_times(paths: RunPaths) -> tuple[float, ...]:
    """When each attempt was started, Unix seconds: a copy that goes on elsewhere adds its own."""
    times = (start["time"] for start in read_starts(paths))
    return tuple(time for time in times if 0 <= time <= LAST_SECOND)


def is_by_hand(start: Mapping[str, Any]) -> bool:
    """Whether someone asked for it: a launch, or a resume."""
    return start.get("attempt") == 1 or str(start.get("why") or "").startswith(BY_HAND)


def is_by_itself(start: Mapping[str, Any]) -> bool:
    """Whether it is a restart or a rollback: no one asked for it, and not on a port alone."""
    return not is_by_hand(start) and start.get("why") != PORT_TAKEN
