"""Asks what may never answer, in a thread of its own, so that nobody waits for it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any, TypeVar, final

SECONDS = 2.0
Answer = TypeVar("Answer")


@final
class InTime:
    """One question at a time. While one is not answered, none is asked."""

    def __init__(self, seconds: float = SECONDS) -> None:
        """`seconds`: how long an answer may take."""
        self._seconds = seconds
        self._answered: threading.Event | None = None

    def ask(self, question: Callable[[], Answer]) -> Answer | None:
        """The answer; None where it fails or does not come in time, or an earlier one is due."""
        if self._answered is not None and not self._answered.is_set():
            return None
        answered = self._answered = threading.Event()
        answers: list[Any] = []

        def work() -> None:
            with contextlib.suppress(Exception):  # a broken driver is no answer
                answers.append(question())
            answered.set()

        threading.Thread(target=work, daemon=True, name="asks the driver").start()
        answered.wait(self._seconds)
        return answers[0] if answers else None
