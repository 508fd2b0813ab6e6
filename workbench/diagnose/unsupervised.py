"""A run whose supervisor and watcher died in the same instant: it trains on and nobody cares."""

from __future__ import annotations

from workbench.diagnose.finding import Finding
from workbench.store.files import read_json
from workbench.store.layout import RunPaths
from workbench.store.status import read_status


def unsupervised(paths: RunPaths) -> Finding | None:
    """What every face tells of such a run, derived when it is read: nobody is there to write it."""
    status = read_status(paths)
    if status.state != "unsupervised":
        return None
    run, state = paths.directory.name, read_json(paths.state) or {}
    return Finding(
        kind="unsupervised",
        evidence="Its processes live; the supervisor that state.json names does not, nor does its "
        "watcher.",
        cause="Supervisor and watcher were killed in the same instant, as by the end of a session "
        "or a container. Training goes on without restarts, alarms and a recorded end.",
        next=f"Watch it again: workbench adopt {run}, or end it: workbench stop {run}",
        confidence=1.0,
        seen_at=state.get("heartbeat"),
    )
