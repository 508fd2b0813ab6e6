"""The queue of a store: one file for each run that waits, in ``<store>/.queue/``.

=========================  ===================================================================
file                       content
=========================  ===================================================================
``waiting/RUN.json``       :class:`QueueEntry`: the run waits for its devices
``starting/RUN.json``      the same file, renamed: the dispatcher starts this run
``settings.json``          :class:`QueueSettings`
``dispatcher.json``        who starts what is next (`schema.ProcessDoc`); gone = no process
``dispatcher.lock``        held (flock) by the one dispatcher
``dispatcher.log``         what it did and why
``lock``                   held (flock) for each change, and while a launch chooses devices
=========================  ===================================================================

The run directory is made when a run is filed, once; a claim renames the run's file, so of two who
want it one has it. A file in ``starting`` stays until the run has a ``state.json``: whoever finds
one without goes on where the process before was killed. Every change happens under ``lock``.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from workbench.errors import StoreError
from workbench.store import detached, names, shapes
from workbench.store.files import read_json, write_json_atomic
from workbench.store.ownership import check_own_folder

FOLDER = ".queue"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueEntry:
    """A run's place in the queue."""

    run: str
    """Id of the run, whose directory holds all that is started."""
    priority: int = 0
    """Higher ones start first."""
    order: float = 0.0
    """Among those of one priority: lower ones start first."""
    filed_at: float = 0.0
    """Unix seconds."""
    tries: int = 0
    """Starts of its supervisor so far; more than one where that was killed before it wrote."""
    shell: dict[str, Any] = field(default_factory=dict[str, Any], repr=False)
    """The environment that it was filed from, see `launching.start.filed_shell`."""

    @property
    def key(self) -> tuple[int, float, str]:
        """The first of the queue has the lowest."""
        return -self.priority, self.order, self.run


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSettings:
    """What is set for a store's queue."""

    paused: bool = False
    """Nothing is started; what runs continues."""
    slots: int | None = None
    """Parts into which the cores are divided where ranks are on the CPU; None = one a core."""


@dataclass(frozen=True, slots=True)
class QueueFiles:
    """The files of one store's queue. Nothing is made by naming them."""

    root: Path
    """The store."""

    @property
    def folder(self) -> Path:
        """Hidden from lists of runs: no id begins with a dot."""
        return self.root / FOLDER

    @property
    def dispatcher(self) -> Path:
        """Who starts what is next."""
        return self.folder / "dispatcher.json"

    def waits(self, run: str) -> Path:
        """The file of a run that waits."""
        return self.folder / "waiting" / f"{run}.json"

    def starts(self, run: str) -> Path:
        """The file of a run that is being started."""
        return self.folder / "starting" / f"{run}.json"

    def waiting(self) -> list[QueueEntry]:
        """Those that wait, the next one first; raises StoreError where no one can tell."""
        return sorted(self._entries("waiting"), key=lambda entry: entry.key)

    def starting(self) -> list[QueueEntry]:
        """Those that are being started; raises StoreError where no one can tell."""
        return sorted(self._entries("starting"), key=lambda entry: entry.key)

    def _entries(self, name: str) -> list[QueueEntry]:
        folder = self.folder / name
        try:
            files = [path for path in folder.iterdir() if path.suffix == ".json"]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StoreError(f"The queue {folder} cannot be read: {error}") from error
        read = [_read_entry(path) for path in files if names.is_id(path.stem)]
        return [entry for entry in read if entry is not None]

    def write(self, path: Path, entry: QueueEntry) -> None:
        """Replace the file of a run."""
        _written(path, asdict(entry))

    @property
    def settings(self) -> QueueSettings:
        """What is set; the defaults where nothing is."""
        document = read_json(self.folder / "settings.json") or {}
        slots = document.get("slots")
        sound = type(slots) is int and 1 <= slots <= 4096
        return QueueSettings(paused=document.get("paused") is True, slots=slots if sound else None)

    def set(self, **changes: Any) -> QueueSettings:
        """Change a setting; call it under the lock."""
        changed = replace(self.settings, **changes)
        _written(self.folder / "settings.json", asdict(changed))
        return changed

    @property
    def is_served(self) -> bool:
        """Whether a dispatcher is at work."""
        return detached.is_served(self.dispatcher)

    @property
    def stands_still(self) -> bool:
        """Whether something waits that no one will start, and no one paused it."""
        return bool(self.waiting() or self.starting()) and not (
            self.settings.paused or self.is_served
        )

    @contextlib.contextmanager
    def locked(self) -> Generator[None]:
        """Within it no one else changes the queue or chooses devices in this store.

        Raises:
            ForeignRunError: the queue is another user's, or others can write to it.
            StoreError: the store cannot be written.
        """
        try:
            for folder in (self.root, self.folder, *(self.folder / folder for folder in _FOLDERS)):
                folder.mkdir(mode=0o700, parents=folder == self.root, exist_ok=True)
        except OSError as error:
            raise StoreError(f"The queue {self.folder} cannot be written: {error}") from error
        self.check_own()
        handle = detached.lock_file(self.folder / "lock", wait=True)
        assert handle is not None
        try:
            yield
        finally:
            os.close(handle)

    def check_own(self) -> None:
        """Refuse a queue whose files someone else could have written: it says what is started.

        Raises:
            ForeignRunError: it is not this user's alone.
        """
        check_own_folder(self.folder, "queue")


_FOLDERS = ("waiting", "starting")


def _read_entry(path: Path) -> QueueEntry | None:
    """None for what is gone, or was not written by us; a value that cannot be there is left out."""
    document = read_json(path)
    if document is None or document.get("run") != path.stem:
        return None
    return QueueEntry(**shapes.fit_as(QueueEntry, document))


def _written(path: Path, document: object) -> None:
    try:
        write_json_atomic(path, document)
    except OSError as error:
        raise StoreError(f"The queue {path.parent} cannot be written: {error}") from error


def in_order(entries: Sequence[QueueEntry], run: str, position: int) -> list[QueueEntry]:
    """The queue with `run` at `position` (1 = the next), renumbered.

    It takes the priority of the place that it comes to, so that it stays there.

    >>> queue = [QueueEntry(run="a", priority=5), QueueEntry(run="b"), QueueEntry(run="c", order=1)]
    >>> [(one.run, one.priority) for one in in_order(queue, "c", 1)]
    [('c', 5), ('a', 5), ('b', 0)]
    """
    moved = next(entry for entry in entries if entry.run == run)
    others = [entry for entry in entries if entry.run != run]
    at = min(max(position - 1, 0), len(others))
    least = others[at].priority if at < len(others) else moved.priority
    most = others[at - 1].priority if at else max(moved.priority, least)
    priority = min(max(moved.priority, least), most)
    result = [*others[:at], replace(moved, priority=priority), *others[at:]]
    return [replace(entry, order=float(number)) for number, entry in enumerate(result)]
