"""`Queue`: who waits in a store, for what, until when, at what price; moves, drops, pauses."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from workbench.describe.option_limits import check_value
from workbench.errors import UnknownNameError, UsageError
from workbench.launching.prepare.options import PRIORITY
from workbench.launching.run import Run
from workbench.launching.start.queued import serve, take_out
from workbench.observe.devices import Device
from workbench.queueing.device_requests import (
    all_devices,
    device_request,
    free_at,
    gpus_wait,
    predicted_seconds,
)
from workbench.queueing.order import NO_SUCH_DEVICES, DeviceRequest, forecast
from workbench.store import names
from workbench.store.commands import command_in
from workbench.store.queue_files import QueueEntry, QueueFiles, in_order
from workbench.store.record import read_run
from workbench.store.run_record import RunRecord
from workbench.store.runs import Store

_DROPPED = "It was taken out of the queue before it started. To start it now: {command}"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedRun:
    """A run that waits, and what is predicted of it."""

    run: str
    """Its id."""
    name: str
    """Its display name."""
    position: int
    """1 = the next."""
    priority: int
    """Higher ones start first."""
    devices_wanted: int
    """GPUs, or slots of cores."""
    devices: tuple[str, ...]
    """Those that it named; () = any."""
    device: str
    """cuda or cpu."""
    filed_at: float
    """Unix seconds."""
    predicted_start: float | None
    """Unix seconds; None = something before it has no predicted end."""
    predicted_seconds: float | None
    """Its predicted length."""
    predicted_usd: float | None
    """Its devices' share of the price for that time."""
    starting: bool = False
    """Whether it is being started now."""
    problem: str = ""
    """Why it cannot start here, or not now; "" = it can."""

    def document(self) -> dict[str, Any]:
        """Plain JSON form."""
        return {**asdict(self), "devices": list(self.devices)}


class Queue:
    """The queue of a store. Reading it starts nothing.

    Args:
        store: Folder of runs; default ``$WORKBENCH_STORE``, else ``./runs``.
        clock: What tells the time, in Unix seconds.
    """

    def __init__(
        self,
        store: str | os.PathLike[str] | Store | None = None,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store if isinstance(store, Store) else Store(store)
        self._files = QueueFiles(self._store.root)
        self._clock = clock

    @property
    def state(self) -> str:
        """empty, serving, paused, or waiting (runs wait, and no one starts them)."""
        if self._files.settings.paused:
            return "paused"
        if self._files.stands_still:
            return "waiting"
        return "serving" if self._files.waiting() or self._files.starting() else "empty"

    def devices(self) -> tuple[Device, ...]:
        """The devices of this host, who holds them, and the free memory of GPUs."""
        everything = all_devices(self._store.root)
        gpus = tuple(device for device in everything if device.kind == "gpu")
        return gpus or everything

    def jobs(self) -> list[QueuedRun]:
        """The runs that wait, the next one first."""
        files, devices, now = self._files, all_devices(self._store.root), self._clock()
        filed = [(entry, True) for entry in files.starting()]
        filed += [(entry, False) for entry in files.waiting()]
        records = {entry.run: read_run(self._store.find(entry.run)) for entry, _ in filed
                   if (self._store.root / entry.run / "run.json").exists()}  # fmt: skip
        runs = {run: record for run, record in records.items() if record is not None}
        requests = {run: device_request(record, devices) for run, record in runs.items()}
        seconds = {run: predicted_seconds(record) for run, record in runs.items()}
        free = free_at(devices, self._store.root, now)
        turns = {turn.run: turn for turn in forecast(list(requests.values()), seconds, free, now)}
        listed = [(entry, starts) for entry, starts in filed if entry.run in runs]
        return [
            QueuedRun(
                run=entry.run,
                name=runs[entry.run].name,
                position=number,
                priority=entry.priority,
                devices_wanted=requests[entry.run].count,
                devices=tuple(runs[entry.run].devices),
                device=runs[entry.run].device,
                filed_at=entry.filed_at,
                predicted_start=now if starts else turns[entry.run].start,
                predicted_seconds=seconds[entry.run],
                predicted_usd=_usd(runs[entry.run], seconds[entry.run]),
                starting=starts,
                problem=_problem(requests[entry.run], runs[entry.run], devices),
            )
            for number, (entry, starts) in enumerate(listed, 1)
        ]

    def move(self, run: str, position: int | None = None, *, priority: int | None = None) -> None:
        """Give a run that waits another place (1 = the next), or another priority.

        Raises:
            UsageError: it does not wait, or nothing was asked for.
        """
        if position is None and priority is None:
            raise UsageError("Give the new place (1 = the next), or a priority.")
        if position is not None and position < 1:
            raise UsageError(f"A place in the queue is 1 (the next) or more, not {position}.")
        if priority is not None:
            check_value("priority", priority, PRIORITY)
        with self._files.locked():
            entry = self._waiting(run)
            if priority is not None:
                last = max(entry.order for entry in self._files.waiting())
                entry = replace(entry, priority=priority, order=last + 1)
                self._files.write(self._files.waits(entry.run), entry)
            if position is not None:
                for queue_entry in in_order(self._files.waiting(), entry.run, position):
                    self._files.write(self._files.waits(queue_entry.run), queue_entry)
            serve(self._files)

    def drop(self, run: str) -> Run:
        """Take a run that waits out of the queue; it is kept as stopped. A running one stays.

        Raises:
            UsageError: it does not wait.
        """
        name = self._waiting(run).run
        handle = Run(self._store.find(name))
        again, stop = self._command("rerun", name), self._command("stop", name)
        if not take_out(self._store.find(name), _DROPPED.format(command=again)):
            raise UsageError(f"{name} has just been started. To end it: {stop}")
        with self._files.locked():
            serve(self._files)
        return handle

    def pause(self) -> None:
        """Start nothing more; what runs continues."""
        with self._files.locked():
            self._files.set(paused=True)

    def start(self) -> None:
        """Start what is due, now and later: end a pause, bring the dispatcher back."""
        with self._files.locked():
            self._files.set(paused=False)
            serve(self._files)

    def set_slots(self, slots: int | None) -> None:
        """Divide the cores into so many slots for runs on the CPU; None = one a core.

        Raises:
            UsageError: fewer than one.
        """
        if slots is not None and not 1 <= slots <= 4096:
            raise UsageError(f"The number of slots must be 1 to 4096, not {slots}.")
        with self._files.locked():
            self._files.set(slots=slots)
            serve(self._files)

    def document(self) -> dict[str, Any]:
        """Plain JSON form: state, devices, jobs."""
        return {
            "state": self.state,
            "devices": [device.document() for device in self.devices()],
            "jobs": [run.document() for run in self.jobs()],
        }

    def _command(self, verb: str, run: str) -> str:
        return command_in(self._store.root, verb, run)

    def _waiting(self, run: str) -> QueueEntry:
        """The place of a run, by id or unique prefix."""
        waiting = self._files.waiting()
        exact = [entry for entry in waiting if entry.run == run]
        fits = exact or [entry for entry in waiting if run and entry.run.startswith(run)]
        if len(fits) == 1:
            return fits[0]
        if len(fits) > 1:
            raise UsageError(f"{run!r} fits {', '.join(fit.run for fit in fits)}. Give the id.")
        if names.is_id(run) and (self._store.root / run).is_dir():
            raise UsageError(
                f"{run} does not wait in the queue. To end a run: {self._command('stop', run)}"
            )
        if not waiting:
            raise UsageError("Nothing waits in the queue. File a run: workbench launch … --queue")
        raise UnknownNameError.near("queued run", run, [entry.run for entry in waiting])

    def __repr__(self) -> str:
        lines = [f"Queue({str(self._store.root)!r}): {self.state}"]
        lines += [f"  {run.position}. {run.run}" for run in self.jobs()]
        return "\n".join(lines)


def _problem(request: DeviceRequest, run: RunRecord, devices: Sequence[Device]) -> str:
    if not request.impossible:
        return ""
    return gpus_wait(request, run, devices) or NO_SUCH_DEVICES


def _usd(run: RunRecord, seconds: float | None) -> float | None:
    if seconds is None or run.usd_per_hour is None:
        return None
    return seconds * run.usd_per_hour / 3600
