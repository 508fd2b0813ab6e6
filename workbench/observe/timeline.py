"""The latest steps rank by rank, for "who waited for whom"."""

from __future__ import annotations

from collections import deque
from typing import Any

from workbench.observe.events import StepRow

_STEPS = 24
_MAX_RANKS = 16  # the chart's rows; the view has to stay small


class Timeline:
    """Keeps the latest steps' times of each rank."""

    def __init__(self, ranks: int) -> None:
        self._ranks = min(ranks, _MAX_RANKS)
        self._rows: deque[StepRow] = deque(maxlen=_STEPS)

    def append(self, row: StepRow) -> None:
        """Take in a finished step."""
        if row.backward_at:
            self._rows.append(row)

    def document(self) -> dict[str, Any]:
        """Columns per rank, in seconds after the step's first rank entered backward.

        ``data`` is how long the rank waited for data before; what is not known is None.
        """
        starts = [min(row.backward_at.values()) for row in self._rows]
        return {
            "step": [row.step for row in self._rows],
            "ranks": [
                {
                    "rank": rank,
                    "entered": self._after(starts, "backward_at", rank),
                    "ended": self._after(starts, "ended_at", rank),
                    "data": [_rounded(row.data_seconds.get(rank)) for row in self._rows],
                }
                for rank in range(self._ranks)
            ]
            if self._rows
            else [],
        }

    def _after(self, starts: list[float], name: str, rank: int) -> list[float | None]:
        times: list[float | None] = [getattr(row, name).get(rank) for row in self._rows]
        return [
            None if time is None else _rounded(time - start)
            for time, start in zip(times, starts, strict=True)
        ]


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 5)
