"""What a command shows of a run that it started from another one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import workbench as wb
from workbench.cli.tables import print_json
from workbench.cli.terminal import console, errors
from workbench.cli.waiting import exit_with, stay
from workbench.diagnose.nodes import node_command


def show_started(
    run: wb.Run,
    heading: str,
    more: Mapping[str, Any] | None = None,
    *,
    wait: bool,
    as_json: bool,
) -> None:
    """Print where `run` is, or its JSON with `more` in it; with `wait` stay to its end."""
    for note in run.notes:
        errors.print(f"note: {note}", markup=False, soft_wrap=True)
    document: dict[str, Any] = {
        "run": run.id,
        "dir": str(run.directory),
        "command": run.command,
        "config_files": run.config_files,
        "notes": list(run.notes),
        "nodes": node_commands(run),
        **(more or {}),
    }
    if not as_json:
        console.print(f"{heading} in {run.directory}", markup=False, soft_wrap=True)
        for node, line in enumerate(document["nodes"], 1):
            console.print(f"run on machine {node}:   {line}", markup=False, soft_wrap=True)
    if wait:
        stay(run, quiet=as_json, passes_on_sigterm=True)
        document |= run.summary()
    if as_json:
        print_json(document)
    if wait:
        exit_with(run)


def node_commands(run: wb.Run) -> list[str]:
    """What to type on the other machines of a run, where no engine does."""
    record = run.document
    nodes = 1 if record.get("engine") else int(record.get("nodes") or 1)
    return [node_command(run.directory, node) for node in range(1, nodes)]
