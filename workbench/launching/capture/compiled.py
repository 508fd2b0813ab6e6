"""An optimizer step that torch.compile has traced: its hooks are traced too, and never called.

What a hook stores in an attribute while it is traced, the compiled code stores at every run. The
next observed call looks whether something was stored.
"""

from __future__ import annotations

from typing import Any


class CompiledStep:
    """Reports a compiled step that has ended since the last look."""

    def __init__(self) -> None:
        self.optimizer: Any = None  # set by the compiled code itself
        self.tell: Any = None  # called with the optimizer, outside of compiled code

    def look(self) -> None:
        """Report the step, if there was one."""
        optimizer = self.optimizer
        if optimizer is not None:
            self.optimizer = None
            self.tell(optimizer)
