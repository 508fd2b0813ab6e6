"""The log of a detached process: its standard output, a file on a disk that may be full."""

from __future__ import annotations

import contextlib
import time

from workbench.store.secrets import hide_known


def log(text: str) -> None:
    """One line with the time; a full disk loses it, no more."""
    with contextlib.suppress(OSError, UnicodeEncodeError):
        print(time.strftime("%Y-%m-%d %H:%M:%S"), hide_known(text), flush=True)  # noqa: T201
