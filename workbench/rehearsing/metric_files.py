"""The metric lines of a rehearsed run: those of a real run's ranks, without having trained."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from typing import final

from workbench.observe.events import StepRow
from workbench.store.cut_lines import cut_after
from workbench.store.layout import RunPaths

_FORWARD = 0.4  # of a step lies before its backward pass is entered
_LATE = 0.3  # of what a throttled GPU adds to a step is seen when it enters the backward pass
_NOISE = 0.01


def usual_loss(parameters: float, tokens: float, vocabulary: int) -> float:
    """A loss of the usual shape: Hoffmann et al. 2022 (arXiv 2203.15556, section D.3).

    >>> round(usual_loss(70e9, 1.4e12, 32_000), 2)
    1.94
    """
    fitted = 1.69 + 406.4 / max(1.0, parameters) ** 0.34 + 410.7 / max(1.0, tokens) ** 0.28
    return min(fitted, math.log(max(2, vocabulary)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """What the loss depends on."""

    parameters: float
    """Of the model."""
    tokens_per_step: float
    """All ranks."""
    vocabulary: int
    """Size of it."""

    def loss(self, step: int) -> float:
        """At an optimizer step."""
        return usual_loss(self.parameters, step * self.tokens_per_step, self.vocabulary)


@final
@dataclass(slots=True, kw_only=True)
class MetricFiles:
    """Makes the lines of all ranks, and writes them some at a time."""

    paths: RunPaths
    ranks: int
    curve: Curve
    chance: random.Random
    began: float
    """Unix seconds at which the run's clock began."""
    _waiting: list[tuple[int, list[bytes]]] = field(default_factory=list[tuple[int, list[bytes]]])
    _written: int = 0

    def add(
        self, step: int, end: float, seconds: float, usual: float, hot: frozenset[int]
    ) -> StepRow:
        """One step of all ranks.

        Args:
            step: Counted from 1.
            end: Seconds on the run's clock.
            seconds: What it took.
            usual: What it takes without throttled GPUs.
            hot: The ranks on these.
        """
        at, draw = self.began + end, self.chance.gauss
        took = seconds * max(0.5, draw(1.0, _NOISE))
        base = self.curve.loss(step)
        row = StepRow(step, at, ranks=self.ranks, step_seconds=took, seen_at=at)
        entered, late = at - (1 - _FORWARD) * usual, _LATE * max(0.0, seconds - usual)
        lines: list[bytes] = []
        for rank in range(self.ranks):
            loss = base * draw(1.0, _NOISE)
            into = entered + (late if rank in hot else 0.0) + abs(draw(0.0, 0.002 * usual))
            row.losses[rank], row.backward_at[rank], row.ended_at[rank] = loss, into, at
            row.data_seconds[rank] = 0.001 * usual
            lines.append(
                b'{"step":%d,"time":%.3f,"step_seconds":%.5f,"backward_at":%.4f,"loss":%.5f,'
                b'"data_seconds":%.5f}\n' % (step, at, took, into, loss, 0.001 * usual)
            )
        row.loss = sum(row.losses.values()) / self.ranks
        self._waiting.append((step, lines))
        return row

    def flush(self) -> None:
        """Write what waits."""
        if not self._waiting:
            return
        for rank in range(self.ranks):
            with self.paths.rank_metrics(rank).open("ab") as file:
                file.write(b"".join(lines[rank] for _, lines in self._waiting))
        self._written = self._waiting[-1][0]
        self._waiting.clear()

    def go_back(self, step: int, attempt: int) -> None:
        """Steps beyond `step` are done again: their lines are put away, as a real run does."""
        remaining = [lines for lines in self._waiting if lines[0] <= step]
        lost = [lines for lines in self._waiting if lines[0] > step]
        if self._written > step:
            for rank in range(self.ranks):
                path = self.paths.rank_metrics(rank)
                cut_after(path, step, path.with_name(f"rank-{rank}.lost.{attempt}"))
            self._written = step
        if lost:
            with self.paths.metrics.joinpath(f"rank-0.lost.{attempt}").open("ab") as file:
                file.write(b"".join(lines[0] for _, lines in lost))
        self._waiting[:] = remaining
