"""Numbers that a learner commits before a cell computes them, and how close they were.

>>> predictions = Predictions()
>>> predictions.lock("GPUs for 70B", 12)
'Locked: GPUs for 70B: 12.'
>>> predictions.reveal("GPUs for 70B", 15)
'GPUs for 70B: 15. You said 12: right within 25 %.'
>>> predictions
1 of 1 predictions right within 25 %
"""

from __future__ import annotations

import math
from numbers import Real

from workbench.errors import UsageError

TOLERANCE = 0.25
"""A prediction is right if it is off by at most this share of the answer."""


class Predictions:
    """One lesson's predictions. The first number counts; what was not predicted is not scored."""

    def __init__(self) -> None:
        self._locked: dict[str, float] = {}
        self._answers: dict[str, float] = {}

    def lock(self, question: str, number: float | None) -> str:
        """Commit a number. None commits nothing, so that a lesson runs without a learner, too.

        Raises:
            UsageError: it is not a number, another was locked before, or the answer is known.
        """
        if number is None:
            return f"Not predicted: {question}. Put a number instead of None, and run again."
        if not isinstance(number, Real) or not math.isfinite(number):
            raise UsageError(f"{question!r} takes a number without its unit, not {number!r}.")
        if question in self._answers and question not in self._locked:
            raise UsageError(f"The answer to {question!r} is known: a prediction comes too late.")
        first = self._locked.setdefault(question, number)
        if first != number:
            raise UsageError(f"{question!r} is locked at {first:g}: the first number counts.")
        return f"Locked: {question}: {first:g}."

    def reveal(self, question: str, answer: float) -> str:
        """The answer beside what was predicted."""
        self._answers[question] = answer
        if question not in self._locked:
            return f"{question}: {answer:.4g}. Not predicted, not scored."
        verdict = "right within" if self._is_right(question) else "further off than"
        locked = f"You said {self._locked[question]:.4g}"
        return f"{question}: {answer:.4g}. {locked}: {verdict} {100 * TOLERANCE:.0f} %."

    def _is_right(self, question: str) -> bool:
        answer = self._answers[question]
        return abs(self._locked[question] - answer) <= TOLERANCE * abs(answer)

    def __repr__(self) -> str:
        scored = [question for question in self._locked if question in self._answers]
        right = sum(self._is_right(question) for question in scored)
        return f"{right} of {len(scored)} predictions right within {100 * TOLERANCE:.0f} %"
