"""Whether a run that trains on unwatched may get its new supervisor on this machine."""

from __future__ import annotations

import socket

from workbench.store import processes
from workbench.store.files import read_as
from workbench.store.layout import RunPaths
from workbench.store.node_schema import NodeDoc
from workbench.store.record import read_run
from workbench.store.run_record import RunRecord
from workbench.store.schema import StateDoc


def may_adopt(paths: RunPaths) -> bool:
    """Whether this is the machine of the supervisor that is gone, and its training is at work.

    A living process with the run's marker in its environment is the proof: state.json may name any.

    On another one its launcher looks dead, so a supervisor there would end what is at work. Of a
    run over several machines, node 0 alone can watch.
    """
    state, run = read_as(StateDoc, paths.state), read_run(paths) or RunRecord()
    supervisor = state and state.get("supervisor")
    if supervisor and supervisor["boot_id"] != processes.boot_id():
        return False
    first = read_as(NodeDoc, paths.node(0)) if run.nodes > 1 else None
    if first and first.get("host", socket.gethostname()) != socket.gethostname():
        return False
    return state is not None and _has_own_process(paths, run, state)


def _has_own_process(paths: RunPaths, run: RunRecord, state: StateDoc) -> bool:
    """Of the machine that node 0 is: containers of one host share the boot."""
    ranks = state.get("ranks", {})
    own = [ranks.get(str(rank)) for rank in range(run.processes // run.nodes)]
    return any(
        processes.is_marked(process, run.marker, paths.directory)
        for process in [state.get("launcher"), *own]
    )
