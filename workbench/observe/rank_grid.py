"""Every rank in the latest steps: how late, what loss, how long a step. For the rank heat map.

Steps that not all ranks have ended yet are there, too: who is missing there is who the others
wait for.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from workbench.observe.events import StepRow
from workbench.observe.packed_numbers import coded, digits_of

_STEPS = 24
_PENDING = 2  # steps under way that are shown
_ROWS_MAX = 1024  # of more ranks each row stands for several: their highest values
_CHARS = 6200  # of one measure


class RankGrid:
    """Keeps the latest steps of all ranks."""

    def __init__(self) -> None:
        self._rows: deque[StepRow] = deque(maxlen=_STEPS + 1)

    def append(self, row: StepRow) -> None:
        """Take in a finished step, replacing those that are done again with it."""
        while self._rows and self._rows[-1].step >= row.step:
            self._rows.pop()
        self._rows.append(row)

    def document(self, ranks: int, begun: Sequence[StepRow]) -> dict[str, Any] | None:
        """See `schema.ViewDoc`; None before two ranks have ended a step. `begun`: under way."""
        under_way = list(begun)[-_PENDING:]
        rows = [*self._rows, *under_way]
        if ranks < 2 or not rows:
            return None
        each = -(-ranks // _ROWS_MAX)
        digits = digits_of(ranks)
        width = -(-ranks // each)
        step_count = min(_STEPS, max(2, _CHARS // (width * digits)), len(rows))
        measures = {
            "late": [_late(row) for row in rows][-step_count:],
            "loss": [row.losses for row in rows][-step_count:],
            "seconds": [_seconds(before, row) for before, row in pairwise([None, *rows])][
                -step_count:
            ],
        }
        return {
            "step": [row.step for row in rows][-step_count:],
            "pending": min(len(under_way), step_count),
            "ranks": ranks,
            "each": each,
            "measures": {
                name: coded([_grouped(column, ranks, each) for column in columns], digits)
                for name, columns in measures.items()
            },
        }


def _late(row: StepRow) -> dict[int, float]:
    """Seconds after the step's first rank entered backward."""
    if len(row.backward_at) < 2:
        return {}
    first = min(row.backward_at.values())
    return {rank: entered - first for rank, entered in row.backward_at.items()}


def _seconds(before: StepRow | None, row: StepRow | None) -> dict[int, float]:
    """From the end of the step before to that of this one."""
    if before is None or row is None or row.step != before.step + 1:
        return {}
    ended = before.ended_at
    return {rank: at - ended[rank] for rank, at in row.ended_at.items() if rank in ended}


def _grouped(column: dict[int, float], ranks: int, each: int) -> list[float | None]:
    """One value for `each` ranks: the highest."""
    get = column.get
    if each == 1:
        return [get(rank) for rank in range(ranks)]
    starts = range(0, ranks, each)
    return [_highest(map(get, range(at, min(ranks, at + each)))) for at in starts]


def _highest(values: Iterable[float | None]) -> float | None:
    """What is not finite counts as highest."""
    numbers = [value for value in values if value is not None]
    odd = next((value for value in numbers if not math.isfinite(value)), None)
    return odd if odd is not None else max(numbers, default=None)
