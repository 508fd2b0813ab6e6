"""Whether a run that trains on unwatched may get its new supervisor on this machine."""

from __future__ import annotations

import socket
from typing import Any

from workbench.store import processes
from workbench.store.files import read_json
from workbench.store.layout import RunPaths


def may_adopt(paths: RunPaths) -> bool:
    """Whether this is the machine of the supervisor that is gone, and its training is at work.

    A living process with the run's marker in its environment is the proof: state.json may name any.

    On another one its launcher looks dead, so a supervisor there would end what is at work. Of a
    run over several machines, node 0 alone can watch.
    """
    state, run = read_json(paths.state) or {}, read_json(paths.run) or {}
    supervisor: dict[str, Any] = state.get("supervisor") or {}
    if supervisor.get("boot_id", processes.boot_id()) != processes.boot_id():
        return False
    nodes = int(run.get("nodes") or 1)
    first: dict[str, Any] = (read_json(paths.node(0)) or {}) if nodes > 1 else {}
    if first.get("host", socket.gethostname()) != socket.gethostname():
        return False
    return _has_own_process(run, state, nodes)


def _has_own_process(run: dict[str, Any], state: dict[str, Any], nodes: int) -> bool:
    """Of the machine that node 0 is: containers of one host share the boot."""
    ranks: dict[str, Any] = state.get("ranks") or {}
    own = [ranks.get(str(rank)) for rank in range(int(run.get("processes") or 1) // nodes)]
    marker = str(run.get("marker") or "")
    return any(processes.is_marked(one, marker) for one in [state.get("launcher"), *own])
