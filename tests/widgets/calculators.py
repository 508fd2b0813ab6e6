"""What the tests of the calculators share: moves as the page sends them, and waiting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.conftest import until as wait_until


def move(calculator: Any, token: str = "page:1", **changes: object) -> None:
    """One move of controls, as the page sends it."""
    message = {"type": "change", "changes": changes, "token": token}
    calculator._on_message(calculator, message, [])


def until(check: Callable[[], object], what: str, seconds: float = 20) -> None:
    """Wait for a true answer; fails saying what was waited for."""
    wait_until(check, seconds, what)
