"""Asks what may never answer, in a thread of its own, so that no caller waits for it for long."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar, final

SECONDS = 2.0
Answer = TypeVar("Answer")


@final
class BoundedCalls:
    """One question at a time. While one is not answered, none is asked."""

    def __init__(self, seconds: float = SECONDS) -> None:
        """`seconds`: how long an answer may take."""
        self.seconds = seconds
        """How long an answer may take."""
        self._answered: threading.Event | None = None
        self._asked_at = 0.0
        self._one_by_one = threading.Lock()
        self._worker: threading.Thread | None = None

    @property
    def silent_seconds(self) -> float | None:
        """Since when a question has had no answer, too long already; None = all were answered."""
        pending = self._answered
        if pending is None or pending.is_set():
            return None
        seconds = time.monotonic() - self._asked_at
        return seconds if seconds >= self.seconds else None

    def ask(self, question: Callable[[], Answer]) -> Answer | None:
        """The answer; None where it fails or does not come in time, or an earlier one is due.

        A question that asks another one here gets that answer in its own time.
        """
        if threading.current_thread() is self._worker:
            with contextlib.suppress(Exception):
                return question()
            return None
        if not self._one_by_one.acquire(timeout=self.seconds):
            return None
        try:
            return self._ask(question)
        finally:
            self._one_by_one.release()

    def _ask(self, question: Callable[[], Answer]) -> Answer | None:
        if self._answered is not None and not self._answered.is_set():
            return None
        answered = self._answered = threading.Event()
        self._asked_at = time.monotonic()
        answers: list[Any] = []

        def work() -> None:
            with contextlib.suppress(Exception):  # a broken driver is no answer
                answers.append(question())
            answered.set()

        self._worker = threading.Thread(target=work, daemon=True, name="asks the driver")
        self._worker.start()
        answered.wait(self.seconds)
        return answers[0] if answers else None


DRIVER = BoundedCalls(30.0)
"""What this process asks the GPUs' drivers before and beside a run. A broken driver may hang in any
call, forever; nvidia-smi then hangs too. Loading it may take ten seconds on a node of eight cards
whose driver is not kept loaded (persistence mode)."""


def driver_silence() -> str:
    """That the driver does not answer, as a sentence with what to do; "" = it does, or is none."""
    if DRIVER.silent_seconds is None:
        return ""
    return (
        f"The GPU driver has not answered for {DRIVER.silent_seconds:.0f} s: it hangs, and "
        "nvidia-smi would too. Look at dmesg, and restart or replace the machine."
    )
