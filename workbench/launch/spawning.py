"""Starts the detached supervisor of a run directory."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from typing import Any

from workbench.errors import HostError
from workbench.launch.launcher_process import inherited
from workbench.launch.warm.client import server_kind, start_server
from workbench.store.layout import RunPaths


def spawn_supervisor(paths: RunPaths, order: dict[str, Any] | None) -> None:
    """Start it; with no order it adopts. Returns without waiting for it.

    Raises:
        OSError: the run directory cannot be written.
    """
    if order is not None and order.get("warm"):
        _start_warm_server(order)
    command = [sys.executable, "-m", "workbench.launch.supervisor", str(paths.directory)]
    with paths.supervisor_log.open("ab") as output:
        process = subprocess.Popen(
            command if order is not None else [*command, "--adopt"],
            stdin=subprocess.DEVNULL if order is None else subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd=paths.directory,
        )
    if process.stdin is not None:
        process.stdin.write(json.dumps(order).encode())
        process.stdin.close()
    # The supervisor outlives us or not: no zombie if it does not, no warning if it does.
    threading.Thread(target=process.wait, daemon=True).start()


def _start_warm_server(order: dict[str, Any]) -> None:
    """By us, not by the supervisor: what descends from a supervisor belongs to its run."""
    warm = order["warm"]
    environment = {**inherited(), **order["environment"]}
    with contextlib.suppress(HostError):  # the supervisor meets it too, and says so
        start_server(server_kind(environment, warm["threads"], warm["modules"]))
