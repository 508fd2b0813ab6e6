"""The child's own error: a sentence that the parent raises again as `SimulationUnavailable`."""

from __future__ import annotations


class CannotSimulateError(Exception):
    """What was asked for has no exact simulation; the message says what and why."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"cannot be simulated: {reason}")
