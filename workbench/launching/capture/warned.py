"""Warnings name the user's line: a wrapper of this hook is no caller.

``warnings.warn(…, stacklevel=2)`` in a constructor or method that the hook has wrapped would name
the wrapper's file.
"""

from __future__ import annotations

import functools
import inspect
import os
import warnings
from typing import Any

_HOOK = os.path.dirname(os.path.abspath(__file__)) + os.sep


def patch() -> None:
    """Have `warnings.warn` count no frame of the hook."""
    warn = warnings.warn

    @functools.wraps(warn)
    def warn_of_caller(
        message: Any, category: Any = None, stacklevel: int = 1, source: Any = None, **kwargs: Any
    ) -> None:
        callers = max(stacklevel, 2 if kwargs.get("skip_file_prefixes") else 1)
        level = 1 + callers + _own_frames(callers)
        warn(message, category, level, source, **kwargs)

    warnings.warn = warn_of_caller


def _own_frames(stacklevel: int) -> int:
    """Frames of the hook among the next `stacklevel` callers."""
    here = inspect.currentframe()
    frame, own = here and here.f_back and here.f_back.f_back, 0
    for _ in range(stacklevel - 1):
        frame = frame and frame.f_back
        while frame is not None and frame.f_code.co_filename.startswith(_HOOK):
            frame, own = frame.f_back, own + 1
        if frame is None:
            break
    return own
