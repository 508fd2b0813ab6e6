"""run.json, for those who start the run again from it: whole, or refused with what it lacks."""

from __future__ import annotations

from typing import Any

from workbench.errors import StoreError
from workbench.store.files import read_json_or_why
from workbench.store.layout import RunPaths

TO_START = ("run", "script", "arguments", "command", "environment", "working_directory")
"""What a start of the same run needs."""
TO_EXPORT = ("name", "script", "arguments", "strategy")
"""What a job on other machines needs."""


def read_record(paths: RunPaths, needed: tuple[str, ...] = TO_START) -> dict[str, Any]:
    """run.json with at least the fields that are `needed`.

    A field whose value is of a wrong type counts as lacking, see `shapes`.

    Raises:
        StoreError: it cannot be read, or lacks some of them.
    """
    record, why = read_json_or_why(paths.run)
    if record is None:
        raise StoreError(
            f"{paths.run} cannot be read ({why or 'no such file'}), so what to start is unknown."
        )
    lacking = [name for name in needed if name not in record]
    if lacking:
        raise StoreError(
            f"{paths.run} is damaged or not written by the workbench: it lacks "
            f"{', '.join(lacking)}. Launch the script as a new run."
        )
    return record
