"""The one exception of the set-up."""

from __future__ import annotations


class SetupError(Exception):
    """Ends the set-up with a message: what was given and what is allowed, then what to do next."""

    def __init__(self, problem: str, next_step: str) -> None:
        super().__init__(f"{problem}\nNext: {next_step}")
