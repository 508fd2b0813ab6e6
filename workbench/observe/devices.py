"""The devices of this host that runs are given: GPUs, or slots of cores; and who holds which.

A run holds the devices of its record from its launch until it has ended. Beside the runs of the
store, a GPU is held by the processes that NVML names. A slot is a share of the cores: as many
slots as cores, unless ``workbench queue slots`` set another number.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from workbench.describe.detection import device_gpus, usable_cores
from workbench.describe.hardware import device_name
from workbench.observe.gpu import AT_LAUNCH_SECONDS, PatientGpuSampler
from workbench.store import processes
from workbench.store.layout import RunPaths
from workbench.store.queue_files import QueueFiles
from workbench.store.record import read_run
from workbench.store.run_record import RunRecord
from workbench.store.runs import Store
from workbench.store.status import read_status
from workbench.units import GIB

IN_USE_BYTES = GIB
"""Memory in use on a GPU from which on it is someone's program; less is a display or a driver."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Who holds a device."""

    run: str | None = None
    """A run of this store; None = someone else."""
    pid: int | None = None
    """The process, where it is none of the store's runs."""
    text: str
    """For people: the run's id, or the process's name and number."""
    is_run: bool = True
    """Whether it is a run, of whatever store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A GPU of this host, or a slot of its cores."""

    name: str
    """What ``--devices`` calls it: the driver's index, a slice's (MIG) UUID, the slot's number."""
    kind: str
    """``gpu`` or ``slot``."""
    label: str
    """What it is, as "NVIDIA H100 80GB HBM3" or "1 core"."""
    uuid: str | None = None
    """The driver's name of a GPU that no reboot changes."""
    memory_bytes: int | None = None
    """Of a GPU."""
    free_bytes: int | None = None
    """Of its memory."""
    cores: float | None = None
    """Of a slot."""
    holders: tuple[Holder, ...] = field(default=())
    """Who holds it; () = it is free."""

    @property
    def key(self) -> str:
        """Its name among devices of both kinds."""
        return f"{self.kind}{self.name}"

    @property
    def title(self) -> str:
        """Its name in a sentence."""
        return f"{'GPU' if self.kind == 'gpu' else 'slot'} {self.name}"

    @property
    def runs(self) -> tuple[Holder, ...]:
        """The runs among its holders."""
        return tuple(holder for holder in self.holders if holder.is_run)

    @property
    def is_in_use(self) -> bool:
        """Whether a run holds it, or someone's memory lies on it."""
        used = (self.memory_bytes or 0) - (self.free_bytes or 0)
        return bool(self.runs) or (self.free_bytes is not None and used >= IN_USE_BYTES)

    def document(self) -> dict[str, Any]:
        """Plain JSON form."""
        return {**asdict(self), "holders": [asdict(holder) for holder in self.holders]}


def read_devices(store: Path, *, cuda: bool, excluding: str | None = None) -> tuple[Device, ...]:
    """The devices of this host with their holders; the run `excluding` does not count."""
    records = list(_live_records(store, excluding))
    if cuda:
        return tuple(_gpus(store, records, excluding))
    return _slots(QueueFiles(store).settings.slots, records)


def held_by(run: RunRecord) -> tuple[str, ...]:
    """The devices of a run's record; of one that named no GPUs those that its ranks took."""
    if run.devices or run.device != "cuda":
        return tuple(run.devices)
    gpus: list[dict[str, Any]] = run.cluster.get("gpus") or []
    seen = [device_name(gpu.get("index"), gpu.get("uuid")) for gpu in gpus]
    return tuple(seen if run.all_gpus else seen[: max(1, run.processes // run.nodes)])


def slot_count(settings_slots: int | None) -> int:
    """Slots of this host."""
    return settings_slots or usable_cores()


def _live_records(store: Path, excluding: str | None) -> Iterator[RunRecord]:
    """Runs that are at work on this host, the oldest first."""
    host, records = socket.gethostname(), list[RunRecord]()
    for _, run_id in Store(store).folders():
        paths = RunPaths(store / run_id)
        if run_id == excluding or paths.exit.exists():
            continue
        run = read_run(paths)
        if (
            run is None
            or run.engine
            or run.rehearsal
            or run.cluster.get("name") not in {None, host}
        ):
            continue  # it runs elsewhere, or not at all
        status = read_status(paths)
        if status.live and status.state != "queued":
            records.append(run)
    yield from sorted(records, key=lambda run: run.created_at)


def _slots(count: int | None, records: Sequence[RunRecord]) -> tuple[Device, ...]:
    """The slots. A run that named none holds as many as it has ranks: the free ones first."""
    number, cores = slot_count(count), usable_cores()
    holders: dict[str, list[Holder]] = {str(index): [] for index in range(number)}
    on_cpu = [run for run in records if run.device != "cuda"]
    for run in sorted(on_cpu, key=lambda run: not run.devices):
        names: Sequence[str] = run.devices
        if not names:
            by_load = sorted(holders, key=lambda name: (len(holders[name]), int(name)))
            names = by_load[: min(number, max(1, run.processes // run.nodes))]
        for name in names:
            if name in holders:
                holders[name].append(Holder(run=run.run, text=run.run))
    share = cores / number
    label = f"{share:g} core{'' if share == 1 else 's'}"
    return tuple(
        Device(name=name, kind="slot", label=label, cores=share, holders=tuple(slot_holders))
        for name, slot_holders in holders.items()
    )


def _gpus(store: Path, records: Sequence[RunRecord], excluding: str | None) -> Iterator[Device]:
    """The GPUs: a run holds those of its record, and each on which the driver names it."""
    slices = [gpu for gpu in device_gpus() if gpu.is_slice]
    sampler = PatientGpuSampler(slices or None, seconds=AT_LAUNCH_SECONDS)
    samples = sampler.sample()
    on_gpu = [(run, held_by(run)) for run in records if run.device == "cuda"]
    for number, gpu in enumerate(sampler.gpus):
        name = gpu.device_name
        used = samples[number].memory_bytes if number < len(samples) else None  # a slow driver
        computing = sampler.processes_on(gpu.index, gpu.uuid if gpu.is_slice else None)
        named = [_named_by_driver(*process, store) for process in computing]
        runs = [Holder(run=run.run, text=run.run) for run, gpu_names in on_gpu if name in gpu_names]
        counted = {(holder.run, holder.text) for holder in runs} | {(excluding, excluding)}
        by_driver = {(holder.run, holder.text): holder for holder in named}
        yield Device(
            name=name,
            kind="gpu",
            label=gpu.name,
            uuid=gpu.uuid,
            memory_bytes=gpu.memory_bytes,
            free_bytes=None if used is None else max(0, gpu.memory_bytes - used),
            holders=(*runs, *(holder for key, holder in by_driver.items() if key not in counted)),
        )


def _named_by_driver(pid: int, name: str | None, store: Path) -> Holder:
    """Whose process on a card is: a run's of this store or another one, or anything else."""
    if name is None:
        return Holder(text="a process outside this container", is_run=False)
    directory = processes.variable(pid, "WORKBENCH_RUN_DIR")
    if directory:
        of, run = Path(directory).parent, Path(directory).name
        if of.resolve() == store.resolve():
            return Holder(run=run, text=run)
        return Holder(pid=pid, text=run)
    return Holder(pid=pid, text=f"{name} (pid {pid})", is_run=False)
