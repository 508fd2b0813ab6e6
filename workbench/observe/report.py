"""report.html"""

from __future__ import annotations
from typing import Any
from workbench.store.layout import RunPaths


def write_report(paths: RunPaths, end: dict[str, Any]) -> None:
    """Placeholder."""
