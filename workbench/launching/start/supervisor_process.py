"""Starts the detached watcher of a run directory, which starts and keeps the supervisor.

Neither of them may import anything that somebody planted: they start in a folder that only root
can write to, and Python looks for modules in its own folders alone.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from typing import TYPE_CHECKING

from workbench.errors import HostError
from workbench.launching.prepare.launcher_process import LOADERS
from workbench.launching.start.warm_server import fitting_kind
from workbench.launching.warm.client import start_server
from workbench.store.detached import start_detached
from workbench.store.layout import RunPaths
from workbench.store.processes import SAFE_PYTHON, WATCHER

if TYPE_CHECKING:
    from workbench.launching.start.launch_spec import LaunchSpec


def spawn_supervisor(
    paths: RunPaths,
    spec: LaunchSpec | None,
    *,
    supervisor_pid: int | None = None,
    shell: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Start a watcher with its supervisor; with no spec it adopts. Returns without waiting.

    `supervisor_pid`: a supervisor that has lost its watcher; the new watcher takes it over.
    `shell`: the environment that it inherits; None = this process's.

    Raises:
        OSError: the run directory cannot be written.
    """
    if spec is not None and supervisor_pid is None:
        spec = _with_warm_server(spec, shell)
    command = [*SAFE_PYTHON, "-m", WATCHER, str(paths.directory)]
    if spec is None:
        command.append("--adopt")
    if supervisor_pid is not None:
        command += ["--beside", str(supervisor_pid)]
    inherited = os.environ if shell is None else shell
    environment = {name: value for name, value in inherited.items() if name not in LOADERS}
    order = None if spec is None else json.dumps(spec).encode()
    return start_detached(command, paths.supervisor_log, environment, order)


def _with_warm_server(spec: LaunchSpec, shell: Mapping[str, str] | None) -> LaunchSpec:
    """`spec` with the address of the warm server that fits it, which is started unless it runs.

    By us, not by the supervisor: what descends from a supervisor belongs to its run.
    """
    if spec["warm"] is None:
        return spec
    try:
        kind = fitting_kind(spec["environment"], spec["warm"], shell)
        start_server(kind)
        return {**spec, "warm": {**spec["warm"], "server": str(kind.address)}}
    except (HostError, OSError):  # a run never fails for it: the supervisor says why it is cold
        return spec
