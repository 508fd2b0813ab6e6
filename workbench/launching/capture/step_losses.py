"""The losses of the step under way: one for each backward pass whose gradients it will use."""

from __future__ import annotations

import collections
from typing import Any

_MOST = 1024  # a script without a torch optimizer never takes a step that would empty them


class StepLosses(collections.deque[Any]):
    """Losses until an optimizer steps: numbers, or tensors that nothing else keeps alive.

    Inside a step a closure may evaluate at several points (L-BFGS, SAM). The step's loss is that of
    the first one, which ``step`` returns too; what comes after the next ``zero_grad`` is left out.
    The flags are set and read without a call: each step of the script pays for it.
    """

    def __init__(self) -> None:
        super().__init__(maxlen=_MOST)
        self.in_step = False
        """An optimizer's step is under way."""
        self.evaluated = False
        """And its closure has been called once."""

    def drop(self) -> None:
        """The gradients were set to zero."""
        if self.in_step:
            self.evaluated = True
        else:
            self.clear()
