"""What was set while a run trained, for the attempts that come after."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

from workbench.launching.capture.overrides import STEERED, Override
from workbench.launching.capture.steering import GO
from workbench.store.files import read_file, read_json
from workbench.store.layout import RunPaths

_DECISION_BYTES = 400


def steered(paths: RunPaths, first_step: int) -> list[dict[str, Any]]:
    """The changes of values that an attempt from `first_step` on begins with or comes to again.

    Of those that lie ahead the factor is not told: the schedule is met again where they begin.
    """
    changes: list[dict[str, Any]] = []
    for folder in sorted(paths.steering.glob("*-set")) if paths.steering.is_dir() else ():
        result = read_json(folder / "result-0.json") or {}
        if result.get("done") is not True or _decision(folder) != GO:
            continue
        for document in result.get("changes") or ():
            with contextlib.suppress(KeyError, TypeError, ValueError):  # a file that was damaged
                change = Override.read(document).document()
                behind = change["first"] <= first_step
                changes.append(change if behind else {**change, "factor": None, "own": None})
    return changes


def _decision(folder: Path) -> str:
    try:
        return read_file(folder / "decision", _DECISION_BYTES).decode()
    except (OSError, ValueError):
        return ""


def steered_environment(paths: RunPaths, first_step: int) -> dict[str, str]:
    """What tells the ranks of an attempt the values that were changed in those before."""
    changes = steered(paths, first_step)
    return {STEERED: json.dumps(changes)} if changes else {}


def not_kept(paths: RunPaths) -> tuple[str, ...]:
    """A sentence where a new run does not have the values that this one was given on its way."""
    names = [
        f"{change['name']}={change['value']:g} at step {change['first']:,}"
        for change in steered(paths, 0)
    ]
    if not names:
        return ()
    was = f"What was set while {paths.directory.name} trained is not kept: {', '.join(names)}."
    return (f"{was} Set it again with workbench set, or give it as an argument.",)
