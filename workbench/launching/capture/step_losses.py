"""The losses of the step under way: one for each backward pass whose gradients it will use."""

from __future__ import annotations

import collections
from typing import Any

_MOST = 1024  # a script without a torch optimizer never takes a step that would empty them


class StepLosses(collections.deque[Any]):
    """Losses until an optimizer steps: numbers, or tensors that nothing else keeps alive.

    An optimizer may evaluate at several points: in a step with a closure (L-BFGS), or with a method
    of its own before the step (SAM). The step's loss is that of the first one; what comes after the
    next ``zero_grad`` is left out.
    The flags are set and read without a call: each step of the script pays for it.
    """

    def __init__(self) -> None:
        super().__init__(maxlen=_MOST)
        self.in_step = False
        """An optimizer's step is under way."""
        self.evaluated = False
        """The optimizer has its gradients, and evaluates at another point."""
        self._returned: list[Any] = []  # at most two
        self._returned_in = -1

    def drop(self, *, evaluates: bool = False) -> None:
        """The gradients were set to zero, by an optimizer that `evaluates` again, or by others."""
        if self.in_step or evaluates:
            self.evaluated = True
        else:
            self._returned.clear()
            self.clear()

    def drop_by_hand(self) -> None:
        """The gradients were taken off the parameters."""
        if not self.evaluated:
            self.drop()

    def returned(self, loss: Any, step: int) -> None:
        """The gradients of `loss` went to the script, which may assign them in `step`."""
        if step != self._returned_in:
            self._returned, self._returned_in = [], step
        if len(self._returned) < 2:
            self._returned.append(loss)

    def assigned(self, step: int) -> list[Any]:
        """The loss of `step` where no backward pass tells it; of several none is known to be it."""
        return self._returned if step == self._returned_in and len(self._returned) == 1 else []
