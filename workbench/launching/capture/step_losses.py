"""The losses of the step under way: one for each backward pass whose gradients it will use."""

from __future__ import annotations

import collections
from typing import Any

_MOST = 1024  # a script without a torch optimizer never takes a step that would empty them


class StepLosses:
    """Collects losses until an optimizer steps.

    Inside a step a closure may evaluate at several points (L-BFGS, SAM). The step's loss is that of
    the first one, which ``step`` returns too; what comes after the next ``zero_grad`` is left out.
    """

    def __init__(self) -> None:
        self._losses: collections.deque[Any] = collections.deque(maxlen=_MOST)
        self._in_step = self._evaluated = False

    def __bool__(self) -> bool:
        return bool(self._losses)

    def add(self, loss: Any) -> None:
        """Of a backward pass; a number, or a tensor that nothing else keeps alive."""
        if not self._evaluated:
            self._losses.append(loss)

    def drop(self) -> None:
        """The gradients were set to zero."""
        if self._in_step:
            self._evaluated = True
        else:
            self._losses.clear()

    def step_begins(self) -> None:
        """An optimizer's step, or one inside another optimizer's."""
        self._in_step = True

    def step_ended(self) -> None:
        """Its gradients may serve a second optimizer, so the losses stay."""
        self._in_step = self._evaluated = False

    def take(self) -> list[Any]:
        """All of them; none is left."""
        losses = list(self._losses)
        self._losses.clear()
        return losses
