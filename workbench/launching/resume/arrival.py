"""A run that was pulled from an address: its record fitted to this machine, and then resumed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from workbench.errors import StorageError
from workbench.launching.prepare.acceptance import is_accepted, seal
from workbench.launching.prepare.moved import move_config, moved
from workbench.storage.pull import PullResult
from workbench.storage.pull import pull as fetch
from workbench.storage.push import OnProgress
from workbench.store.files import read_json, write_json_atomic
from workbench.store.layout import RunPaths
from workbench.store.record import read_record
from workbench.store.runs import Store


def pull(url: str, store: Store, on_progress: OnProgress | None = None) -> PullResult:
    """Bring the run at ``URL/RUN`` into `store`, so that it can continue here.

    Raises:
        UsageError, StorageError, StoreError: see `storage.pull.pull`.
    """
    return fetch(url, store, settle=settle, on_progress=on_progress)


def settle(arrived: RunPaths, final: Path, *, is_ours: bool) -> list[str]:
    """Put the paths of this machine in place of those of the one that it comes from.

    A record that this user's key sealed is sealed again if all that arrived is theirs, too
    (`is_ours`); else it is accepted by no one, and `workbench adopt` comes before a resume.

    Raises:
        StorageError: its record is that of another run.
        StoreError: it lacks what a start needs.
    """
    run = read_record(arrived)
    if run.run != final.name:
        raise StorageError(f"What was pulled as {final.name} has the record of {run.run[:80]!r}.")
    accepted = is_ours and is_accepted(arrived, run)
    here, notes = moved(arrived, final, run)
    here = replace(here, vouched=run.vouched if accepted else [])
    if accepted:
        here = replace(here, vouched=seal(here))
    write_json_atomic(arrived.run, here.document(), indent=2)
    move_config(arrived, final, run)
    state = read_json(arrived.state)
    if state is not None:  # its processes are those of another machine
        nobody = dict.fromkeys(("supervisor", "watcher", "launcher"))
        gone: dict[str, Any] = {**nobody, "ranks": {}}
        write_json_atomic(arrived.state, {**state, **gone})
    return notes
