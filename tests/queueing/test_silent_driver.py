"""A driver that tells no GPU is no word on what this host has: runs wait, and none fails for it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from workbench.observe.devices import Device
from workbench.queueing import Queue, device_requests, dispatcher, queue
from workbench.queueing.dispatcher import Dispatcher, Host
from workbench.queueing.order import NO_SUCH_DEVICES
from workbench.store.layout import RunPaths
from workbench.store.queue_files import QueueEntry, QueueFiles
from workbench.store.run_record import RunRecord

GPUS = tuple(Device(name=str(number), kind="gpu", label="GPU") for number in range(2))
SLOTS = (Device(name="0", kind="slot", label="1 core"),)


class Machine:
    """A store's queue on a host whose driver tells `gpus`; `second` is its clock."""

    def __init__(self, store: Path, patch: pytest.MonkeyPatch) -> None:
        self.store, self.files, self.second = store, QueueFiles(store), 0.0
        self.gpus: tuple[Device, ...] = GPUS
        self.started: dict[str, tuple[str, ...]] = {}
        self.forgotten = 0
        for module in (dispatcher, queue):
            patch.setattr(module, "all_devices", lambda _store: (*self.gpus, *SLOTS))
        patch.setattr(device_requests, "forget_driver", self.forget)
        patch.setattr(dispatcher, "start_queued", self.start)
        self.host = Host(store, clock=lambda: self.second)

    def forget(self) -> None:
        self.forgotten += 1

    def start(self, paths: RunPaths, devices: tuple[str, ...]) -> None:
        self.started[paths.directory.name] = devices
        paths.state.write_text("{}")

    def file(self, name: str, *, device: str, devices: tuple[str, ...] = ()) -> None:
        paths = RunPaths(self.store / name)
        paths.directory.mkdir()
        cluster = {"gpus": [{"index": 0, "name": "H100"}, {"index": 1, "name": "H100"}]}
        record = RunRecord(
            run=name,
            processes=1,
            device=device,
            devices=list(devices),
            cluster=cluster,
            queued_at=1.0,
        )
        paths.run.write_text(json.dumps(record.document()))
        with self.files.locked():
            entry = QueueEntry(run=name, order=float(len(self.files.waiting())))
            self.files.write(self.files.waits(name), entry)

    def turn(self) -> None:
        Dispatcher(self.files, self.host).turn()

    def waiting(self) -> list[str]:
        return [entry.run for entry in self.files.waiting()]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def test_runs_on_gpus_wait_for_the_driver_and_others_start(machine: Machine) -> None:
    machine.gpus = ()
    machine.file("night-1", device="cuda")
    machine.file("night-2", device="cuda", devices=("1",))
    machine.file("small", device="cpu")
    for machine.second in (0.0, 10_000.0):
        machine.turn()
        assert machine.waiting() == ["night-1", "night-2"]
    assert machine.started == {"small": ("0",)}
    assert machine.forgotten >= 2  # a failure at its start is not kept
    problems = [run.problem for run in Queue(machine.store).jobs() if run.device == "cuda"]
    assert all("The GPU driver does not answer, so it waits" in problem for problem in problems)
    machine.gpus = GPUS
    machine.turn()
    assert machine.started == {"small": ("0",), "night-1": ("0", "1")}
    machine.turn()
    assert machine.started["night-2"] == ("1",)


def test_a_gpu_that_a_driver_does_not_have_is_given_time_to_come_back(machine: Machine) -> None:
    machine.file("gone", device="cuda", devices=("9",))
    machine.turn()
    machine.second = 299.0
    machine.turn()
    assert machine.waiting() == ["gone"]
    machine.second = 301.0
    machine.turn()
    ended = json.loads(RunPaths(machine.store / "gone").exit.read_text())
    assert (machine.waiting(), ended["outcome"]) == ([], "failed")
    assert ended["message"] == NO_SUCH_DEVICES
