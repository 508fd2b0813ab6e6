"""The moments at which one rank entered its collectives, as its file has them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from workbench.observe.core_time import CoreTime, read_core_time
from workbench.observe.events import StepRow
from workbench.store.files import read_json

MOST_CALLS = 24_000
"""Joined at once, over all ranks."""
MOST_STEPS = 64
"""Joined at once."""
_MOST_OF_ALL = 240_000  # joined from one reading of the ranks' files
_COLUMNS = ("group", "number", "waits", "micros")


@dataclass(frozen=True, slots=True)
class Call:
    """One collective as one rank entered it."""

    key: tuple[str, int]  # process group and number: equal ones belong together
    at: float  # Unix seconds on the rank's host
    waits: bool  # the rank continues only when it is over


def read_rank(path: Path, since: float = 0.0, step: int = 0) -> tuple[list[Call], CoreTime]:
    """The latest calls of one rank's file, and what kept it; nothing where none can be read.

    `since`: Unix seconds on the rank's host; of the calls before only the last one is given.
    `step`: from there on it is told what kept the rank.
    """
    document = read_json(path) or {}
    try:
        core_time = read_core_time(document, step)
        names, base = document["groups"], float(document["base"])
        lists = [document[column] for column in _COLUMNS]
        first = max(0, bisect_left(lists[-1], 1e6 * (since - base)) - 1)
        columns = zip(*(times[first:] if first else times for times in lists), strict=True)
        calls = [
            Call((str(names[group]), number), base + micros / 1e6, bool(waits))
            for group, number, waits, micros in columns
        ]
    except (KeyError, TypeError, ValueError, IndexError):
        return [], CoreTime()
    return calls, core_time


def parts(first: Sequence[Call], rows: Sequence[StepRow], ranks: int) -> list[Sequence[StepRow]]:
    """The rows to join one after another, oldest first, so that each part takes moments.

    Of few ranks that is one part, with all rows. `first`: the calls of one rank.
    """
    if len(rows) < 2 or ranks * len(first) <= MOST_CALLS:
        return [rows]
    rank = min(rows[-1].ended_at, default=0)
    times = [call.at for call in first]
    ends = [row.ended_at.get(rank, row.time) for row in rows]
    rows = rows[: bisect_right(ends, times[-1]) + 1]  # the file lags behind
    covered = sum(end >= times[0] for end in ends[: len(rows)])
    in_step = max(1.0, len(times) / max(1, covered))
    at_once = max(1, int(MOST_CALLS / (ranks * in_step)))
    step_count = max(at_once, min(MOST_STEPS, covered - 1, int(_MOST_OF_ALL / (ranks * in_step))))
    begin = max(0, len(rows) - 1 - step_count)
    return [rows[at : at + at_once + 1] for at in range(begin, len(rows) - 1, at_once)]
