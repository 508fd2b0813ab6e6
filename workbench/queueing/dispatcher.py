"""The detached process that starts what is next in a store's queue; one per store, torch-free.

    python -P -m workbench.queueing.dispatcher STORE

It ends by itself when nothing waits or the queue is paused. It may be killed at any point: a run is
claimed by the renaming of its file, the claim stays until the run's supervisor has reported, and a
start that is repeated does nothing (a supervisor starts a first attempt once, see `lifecycle`).
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from workbench.errors import WorkbenchError
from workbench.launching.start.queued import (
    end_unstarted,
    has_begun,
    is_beginning,
    start_queued,
)
from workbench.observe.devices import Device
from workbench.queueing.device_requests import all_devices, device_request, gpus_wait, load
from workbench.queueing.order import NO_SUCH_DEVICES, DeviceRequest, Start, due
from workbench.store import processes
from workbench.store.detached import lock_file, outlive_terminal
from workbench.store.files import read_json, write_json_atomic
from workbench.store.layout import RunPaths
from workbench.store.ownership import foreign_reason
from workbench.store.process_log import log
from workbench.store.queue_files import QueueEntry, QueueFiles
from workbench.store.record import read_run
from workbench.store.room import is_full
from workbench.store.run_record import RunRecord

_LOOK_SECONDS = 1.0
_MOST_TRIES = 3
_PATIENCE_SECONDS = 300.0
"""How long a GPU may be missing before a run that asks for it fails: a card may be reset, and a
driver that has just been loaded does not tell all of them at once."""


class Dispatcher:
    """Takes the queue's turns; all its state is in the queue's files.

    `at` is called with the name of each step as it is done: where a test kills it.
    """

    def __init__(
        self, files: QueueFiles, host: Host, at: Callable[[str], None] = lambda _step: None
    ) -> None:
        self._files = files
        self._host = host
        self._at = at

    def turn(self, leave: Callable[[], None] = lambda: None) -> bool:
        """Start what is due; False when nothing is left to do, after `leave` was called."""
        with self._files.locked():
            for entry in self._files.starting():
                self._follow(entry)
            if not self._files.settings.paused:
                self._start_due()
            waits = bool(self._files.waiting()) and not self._files.settings.paused
            if waits or self._files.starting():
                return True
            leave()
            return False

    def _follow(self, entry: QueueEntry) -> None:
        """A claimed run: it has begun, its supervisor is about to report, or it waits again."""
        run, claim = entry.run, self._files.starts(entry.run)
        if not self._host.exists(run) or self._host.has_begun(run):
            claim.unlink(missing_ok=True)
            self._at("begun")
        elif self._host.is_beginning(run):
            return
        elif entry.tries >= _MOST_TRIES:
            self._fail(run, f"Its supervisor was started {entry.tries} times and never reported.")
        else:  # we, or it and all else, were killed: it is the next again
            claim.rename(self._files.waits(run))
            self._at("returned")

    def _start_due(self) -> None:
        entries = {entry.run: entry for entry in self._files.waiting()}
        for run in [run for run in entries if not self._host.exists(run)]:
            log(f"{run} is gone: its place is dropped")
            self._files.waits(run).unlink(missing_ok=True)
            del entries[run]
        for run in [run for run in entries if self._host.has_begun(run)]:
            self._files.waits(run).unlink(missing_ok=True)
            del entries[run]
        for start in self._host.due(list(entries)):
            self._files.waits(start.run).rename(self._files.starts(start.run))
            self._at("claimed")
            if start.devices:
                self._go(entries[start.run], start.devices)
            else:
                self._fail(start.run, NO_SUCH_DEVICES)

    def _go(self, entry: QueueEntry, devices: tuple[str, ...]) -> None:
        run = entry.run
        tried = replace(entry, tries=entry.tries + 1)
        self._files.write(self._files.starts(run), tried)
        self._at("counted")
        try:
            self._host.start(run, devices)
        except WorkbenchError as error:
            if not is_full(error):
                self._fail(run, str(error))
                return
            log(f"{run} does not start now: {error}")
            self._files.starts(run).rename(self._files.waits(run))
            self._files.write(self._files.waits(run), entry)
        except Exception as error:  # noqa: BLE001 - one run must not hold up the others
            self._fail(run, f"It could not be started: {error!r}")
        else:
            log(f"{run} starts on {', '.join(devices)}")
            self._at("started")

    def _fail(self, run: str, reason: str) -> None:
        log(f"{run} does not start: {reason}")
        self._host.fail(run, reason)
        self._at("failed")
        self._files.starts(run).unlink(missing_ok=True)


class Host:
    """What a dispatcher does to the runs of a store, and asks of this machine."""

    def __init__(self, store: Path, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: seconds, whatever the host's date."""
        self._store, self._clock = store, clock
        self._missing: dict[str, float] = {}  # run -> since when its GPUs are not there
        self._is_silence_logged = False  # whether the log says that the driver does not answer

    def due(self, runs: Sequence[str]) -> list[Start]:
        """Which of them start now, and on which devices."""
        if not runs:
            return []
        devices = all_devices(self._store)
        records = [read_run(self._paths(run)) for run in runs]
        readable = [record for record in records if record is not None]
        requests = [self._request(record, devices) for record in readable]
        self._missing = {run: at for run, at in self._missing.items() if run in runs}
        names = {device.key: device.name for device in devices}
        return [
            replace(start, devices=tuple(names[key] for key in start.devices))
            for start in due(requests, load(devices))
        ]

    def _request(self, run: RunRecord, devices: Sequence[Device]) -> DeviceRequest:
        """What it asks for; what is missing of the GPUs is given time to come back."""
        request = device_request(run, devices)
        if not request.impossible or run.device != "cuda":
            self._missing.pop(run.run, None)
            return request
        why = gpus_wait(request, run, devices)
        if why and not self._is_silence_logged:
            log(f"{run.run} waits: {why}")
        self._is_silence_logged = bool(why)
        since = self._missing.setdefault(run.run, self._clock())
        if why:
            self._missing.pop(run.run)  # the time begins once the driver answers
        return replace(request, unknown=bool(why) or self._clock() - since < _PATIENCE_SECONDS)

    def exists(self, run: str) -> bool:
        """Whether there is a record of it."""
        return read_run(self._paths(run)) is not None

    def start(self, run: str, devices: tuple[str, ...]) -> None:
        """Write them into the record and start its supervisor, which begins a run only once."""
        start_queued(self._paths(run), devices)

    def has_begun(self, run: str) -> bool:
        """Whether its supervisor has reported, or the run has ended."""
        return has_begun(self._paths(run))

    def is_beginning(self, run: str) -> bool:
        """Whether a supervisor was started that lives."""
        return is_beginning(self._paths(run))

    def fail(self, run: str, reason: str) -> None:
        """Write that it never started, and why."""
        paths = self._paths(run)
        if foreign_reason(paths) is None:
            end_unstarted(paths, reason, "failed")

    def _paths(self, run: str) -> RunPaths:
        return RunPaths(self._store / run)


def serve(files: QueueFiles, host: Host, pause: Callable[[], None]) -> None:
    """Be the dispatcher of the queue until nothing is left to do; return where there is one."""
    lock = lock_file(files.folder / "dispatcher.lock")
    if lock is None:
        return
    myself = processes.identify(os.getpid())

    def leave() -> None:  # under the queue's lock: who files a run after it sees no one here
        files.dispatcher.unlink(missing_ok=True)
        os.close(lock)

    dispatcher, going = Dispatcher(files, host), True
    while going:
        try:
            if read_json(files.dispatcher) != myself:
                with files.locked():
                    write_json_atomic(files.dispatcher, myself)
            going = dispatcher.turn(leave)
        except (WorkbenchError, OSError) as error:  # a full disk: what is claimed stays so
            log(f"not now: {error}")
        if going:
            pause()


def main() -> None:
    """Entry point of the detached process."""
    outlive_terminal()
    store = Path(sys.argv[1])
    files = QueueFiles(store)
    files.check_own()
    serve(files, Host(store), lambda: time.sleep(_LOOK_SECONDS))


if __name__ == "__main__":
    main()
