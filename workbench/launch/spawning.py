"""Starts the detached supervisor of a run directory."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from typing import Any

from workbench.store.layout import RunPaths


def spawn_supervisor(paths: RunPaths, order: dict[str, Any] | None) -> None:
    """Start it; with no order it adopts. Returns without waiting for it.

    Raises:
        OSError: the run directory cannot be written.
    """
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
