"""Whether a run that trains on unwatched may get its new supervisor on this machine."""

from __future__ import annotations

import socket
from typing import Any

from workbench.store import processes
from workbench.store.files import read_json
from workbench.store.layout import RunPaths
from workbench.store.record import read_run
from workbench.store.run_record import RunRecord


def may_adopt(paths: RunPaths) -> bool:
    """Whether this is the machine of the supervisor that is gone, and its training is at work.

    A living process with the run's marker in its environment is the proof: state.json may name any.

    On another one its launcher looks dead, so a supervisor there would end what is at work. Of a
    run over several machines, node 0 alone can watch.
    """
    state, run = read_json(paths.state) or {}, read_run(paths) or RunRecord()
    supervisor: dict[str, Any] = state.get("supervisor") or {}
    if supervisor.get("boot_id", processes.boot_id()) != processes.boot_id():
        return False
    first: dict[str, Any] = (read_json(paths.node(0)) or {}) if run.nodes > 1 else {}
    if first.get("host", socket.gethostname()) != socket.gethostname():
        return False
    return _has_own_process(run, state)


def _has_own_process(run: RunRecord, state: dict[str, Any]) -> bool:
    """Of the machine that node 0 is: containers of one host share the boot."""
    ranks: dict[str, Any] = state.get("ranks") or {}
    own = [ranks.get(str(rank)) for rank in range(run.processes // run.nodes)]
    return any(processes.is_marked(one, run.marker) for one in [state.get("launcher"), *own])
