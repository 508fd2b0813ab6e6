"""How many tokens the steps of a curve consumed, where a run may go back and do some again."""

from __future__ import annotations

from typing import final


@final
class Consumed:
    """Adds up step by step. Steps that are done again count once."""

    def __init__(self) -> None:
        self._first: int | None = None
        self._last = 0
        self._tokens: float | None = 0.0

    def add(self, step: int, tokens: int | None) -> None:
        """Account for a step; `tokens` of all ranks, None = unknown."""
        if self._first is None:
            self._first = step
        elif step <= self._last:
            self._go_back(step - 1)
        self._last = step
        self._tokens = None if self._tokens is None or tokens is None else self._tokens + tokens

    def _go_back(self, to: int) -> None:
        """Of the steps so far those up to `to` stay: at the mean of all."""
        assert self._first is not None
        made_steps, kept_steps = self._last - self._first + 1, max(0, to - self._first + 1)
        if self._tokens is not None:
            self._tokens *= kept_steps / made_steps
        self._first = min(self._first, to + 1)

    @property
    def tokens(self) -> int | None:
        """Up to the latest step; None before a step, or where one's are unknown."""
        return None if self._first is None or self._tokens is None else round(self._tokens)
