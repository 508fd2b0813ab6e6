"""Errors in a step of a script that may catch them and go on: the only record of them."""

from __future__ import annotations

import contextlib
from typing import Any

_LETTERS = 300  # of an error
_SEEN = "_workbench_noted"


def note(recorder: Any, place: str, error: Exception) -> None:
    """The `place` of a step raised. An error that passes several places counts once."""
    with contextlib.suppress(Exception):
        if getattr(error, _SEEN, False):
            return
        with contextlib.suppress(AttributeError, TypeError):
            setattr(error, _SEEN, True)
        before = recorder.facts.get("failed_passes") or {"first_step": recorder.steps + 1}
        count, text = before.get("count", 0) + 1, f"{type(error).__name__}: {error}"[:_LETTERS]
        summary = {**before, "count": count, "error": text, "place": place}
        recorder.note(failed_passes=summary)
