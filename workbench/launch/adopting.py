"""Whether a run that trains on unwatched may get its new supervisor on this machine."""

from __future__ import annotations

import socket
from typing import Any

from workbench.store import processes
from workbench.store.files import read_json
from workbench.store.layout import RunPaths


def may_adopt(paths: RunPaths) -> bool:
    """Whether this is the machine of the supervisor that is gone.

    On another one its launcher looks dead, so a supervisor there would end what is at work. Of a
    run over several machines, node 0 alone can watch.
    """
    state, run = read_json(paths.state) or {}, read_json(paths.run) or {}
    supervisor: dict[str, Any] = state.get("supervisor") or {}
    if supervisor.get("boot_id", processes.boot_id()) != processes.boot_id():
        return False
    nodes = int(run.get("nodes") or 1)
    return nodes == 1 or _is_node_0(paths, run, state, nodes)


def _is_node_0(paths: RunPaths, run: dict[str, Any], state: dict[str, Any], nodes: int) -> bool:
    """By its name, and by a process of its: containers of one host share the boot."""
    first: dict[str, Any] = read_json(paths.node(0)) or {}
    if first.get("host", socket.gethostname()) != socket.gethostname():
        return False
    ranks: dict[str, Any] = state.get("ranks") or {}
    own = [ranks.get(str(rank)) for rank in range(int(run["processes"]) // nodes)]
    marker = str(run["marker"])
    return any(processes.is_marked(one, marker) for one in [state.get("launcher"), *own])
