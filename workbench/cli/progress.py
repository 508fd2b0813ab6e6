"""A line on the terminal that says how far a search is."""

from __future__ import annotations

import sys
import time
from collections.abc import Generator
from contextlib import contextmanager

from workbench.plan.search import Told

PATIENCE = 0.5
"""Seconds before anything is said."""


@contextmanager
def search_progress() -> Generator[Told | None]:
    """Yield what a search tells how far it is; None where nobody looks: no terminal on stderr."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console  # noqa: PLC0415  (slow to load)

    began, shown = time.monotonic(), False
    status = Console(stderr=True).status("")

    def told(done: int, of: int, plans: int) -> None:
        nonlocal shown
        if time.monotonic() - began < PATIENCE:
            return
        status.update(f"{done:,} of {of:,} offers looked at, {plans:,} plans found")
        if not shown:
            status.start()
            shown = True

    try:
        yield told
    finally:
        status.stop()
