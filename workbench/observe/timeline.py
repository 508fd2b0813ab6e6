"""The latest steps rank by rank, for the rank timeline."""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import Any

from workbench.observe.events import StepRow

_STEPS = 24
_STEPS_SHOWN = 12  # of them one by one, as many as the chart has room for
_MAX_RANKS = 16  # the chart's rows; the view has to stay small
_MAX_EARLY = 4  # of these, ranks that are there for what the late ones are late against


class Timeline:
    """Keeps the latest steps' times of each rank, and shows those of the extreme ones."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._rows: deque[StepRow] = deque(maxlen=_STEPS)

    def add_ranks(self, ranks: int) -> None:
        """There are `ranks` now."""
        self._ranks = max(self._ranks, ranks)

    def append(self, row: StepRow) -> None:
        """Take in a finished step, replacing those that are done again with it."""
        while self._rows and self._rows[-1].step >= row.step:
            self._rows.pop()
        if row.backward_at:
            self._rows.append(row)

    def document(self) -> dict[str, Any]:
        """Columns per rank, in seconds after the step's first rank entered backward.

        ``data`` is how long the rank waited for data before; what is not known is None. ``last``
        (who entered last, and when) and ``latest`` (who is late most, by the median) are of all
        ranks; of more than 16 only the columns of the latest and of the earliest are there.
        """
        starts = [min(row.backward_at.values()) for row in self._rows]
        late = self._late(starts)
        rows, starts = list(self._rows)[-_STEPS_SHOWN:], starts[-_STEPS_SHOWN:]
        shown_ranks = self._shown_ranks(late)
        latest = max(late, key=lambda rank: late[rank][0], default=None)
        return {
            "step": [row.step for row in rows],
            "last": [_last(row, start) for row, start in zip(rows, starts, strict=True)],
            "latest": None
            if latest is None
            else {"rank": latest, "seconds": _rounded(late[latest][0])},
            "ranks": [
                {
                    "rank": rank,
                    "entered": _after(rows, starts, "backward_at", rank),
                    "ended": _after(rows, starts, "ended_at", rank),
                    "data": [_rounded(row.data_seconds.get(rank)) for row in rows],
                }
                for rank in shown_ranks
            ],
            "ranks_hidden": len(late.keys() - shown_ranks),
        }

    def _late(self, starts: list[float]) -> dict[int, tuple[float, float]]:
        """How late each rank entered backward: by the median, and at most."""
        times: dict[int, list[float]] = {}
        for row, start in zip(self._rows, starts, strict=True):
            for rank, entered in row.backward_at.items():
                times.setdefault(rank, []).append(entered - start)
        return {rank: (median(late), max(late)) for rank, late in sorted(times.items())}

    def _shown_ranks(self, late: dict[int, tuple[float, float]]) -> list[int]:
        """All ranks where they fit; else the latest, by median and at most in turn, and some early.

        A rank that never told takes part where all fit: its row is empty, not missing.
        """
        if not late or max(self._ranks, len(late)) <= _MAX_RANKS:
            return sorted({*range(self._ranks), *late}) if late else []
        usual = sorted(late, key=lambda rank: -late[rank][0])
        worst = sorted(late, key=lambda rank: -late[rank][1])
        chosen = dict.fromkeys(usual[-_MAX_EARLY:])
        for pair in zip(usual, worst, strict=True):
            for rank in pair:
                if len(chosen) < _MAX_RANKS:
                    chosen[rank] = None
        return sorted(chosen)


def _after(rows: list[StepRow], starts: list[float], name: str, rank: int) -> list[float | None]:
    times: list[float | None] = [getattr(row, name).get(rank) for row in rows]
    return [
        None if time is None else _rounded(time - start)
        for time, start in zip(times, starts, strict=True)
    ]


def _last(row: StepRow, start: float) -> dict[str, Any]:
    rank, entered = max(row.backward_at.items(), key=lambda pair: pair[1])
    return {"rank": rank, "entered": _rounded(entered - start)}


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 5)
