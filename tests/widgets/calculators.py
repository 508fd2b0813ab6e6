"""What the tests of the calculators share: moves as the page sends them, and waiting."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def move(calculator: Any, token: str = "page:1", **changes: object) -> None:
    """One move of controls, as the page sends it."""
    message = {"type": "change", "changes": changes, "token": token}
    calculator._on_message(calculator, message, [])


def until(check: Callable[[], object], what: str, seconds: float = 20) -> None:
    """Wait for a true answer; fails saying what was waited for."""
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)
