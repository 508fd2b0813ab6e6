"""Steps that a script did again within an attempt: it went back to a checkpoint of its own.

The metric files keep both passes. The hook marks the first step of each second pass with
``rewound_from``, and writes the same into ``rank-N.rewinds.jsonl``, so that a reader of a long file
knows from its beginning which lines are done again further on.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from workbench.store.files import LineReader
from workbench.store.layout import RunPaths

_MAX_SHOWN = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewind:
    """One return to an earlier step."""

    first: int
    """The first step that was done again."""
    last: int
    """The last one, at which the script had been."""
    time: float
    """Unix seconds at which the first of them was done again."""

    @property
    def steps(self) -> int:
        """How many steps were done again."""
        return self.last - self.first + 1

    def document(self) -> dict[str, Any]:
        """Plain JSON form."""
        return {"first": self.first, "last": self.last, "time": self.time}


def rewind_of(line: Mapping[str, Any]) -> Rewind | None:
    """What a line says that has a step done again, of either file; None of any other line."""
    first, last, time = line.get("step"), line.get("rewound_from"), line.get("time")
    if type(first) is not int or type(last) is not int or not isinstance(time, int | float):
        return None
    return Rewind(first=first, last=last, time=time) if first <= last else None


def read_rewinds(paths: RunPaths, rank: int = 0) -> list[Rewind]:
    """All of a rank so far, in order."""
    reader, rewinds = LineReader(paths.rank_rewinds(rank)), list[Rewind]()
    while lines := reader.read():
        rewinds += [rewind for line in lines if (rewind := rewind_of(line)) is not None]
    return rewinds


def last_steps(rewinds: Sequence[Rewind]) -> list[int]:
    """Of each pass but the last: its last step that no later pass does again.

    >>> passes = [Rewind(first=41, last=50, time=0), Rewind(first=31, last=60, time=0)]
    >>> last_steps(passes)
    [30, 30]
    """
    backwards = itertools.accumulate((rewind.first - 1 for rewind in reversed(rewinds)), min)
    return list(backwards)[::-1]


def rewind_fields(rewinds: Sequence[Rewind]) -> dict[str, Any]:
    """What the view says of them."""
    return {
        "rewinds": [rewind.document() for rewind in rewinds[-_MAX_SHOWN:]],
        "steps_redone": sum(rewind.steps for rewind in rewinds),
    }
