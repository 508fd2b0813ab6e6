"""Which devices of this host a run gets: those it names, else free ones; never a held one.

On a GPU host these are GPUs, by the driver's index. On a CPU host slots of cores play their part: a
run that names some has their share of the cores, one that names none has them all and is not
refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from workbench.describe import Cluster
from workbench.describe.bounded_calls import driver_silence
from workbench.describe.detection import device_gpus
from workbench.describe.hardware import device_name
from workbench.errors import HostError, UsageError
from workbench.launching.prepare.launcher_process import takes_several, visible
from workbench.launching.prepare.options import LaunchOptions
from workbench.launching.prepare.request import Request
from workbench.observe.devices import Device, held_by, read_devices, slot_count
from workbench.store.commands import command_in
from workbench.store.layout import RunPaths
from workbench.store.queue_files import QueueFiles
from workbench.store.run_record import RunRecord
from workbench.store.runs import Store

_MOST_NAMED = 6


def on_named(host: Cluster, options: LaunchOptions) -> tuple[Cluster, LaunchOptions]:
    """`host` with the devices that the options name alone; the options name them by number.

    Raises:
        UsageError: there is no such device, one is named twice, or their number does not fit.
    """
    if not options.devices or options.cluster is not None:
        return host, options
    cuda = bool(host.gpus) and not options.cpu
    if cuda and any(gpu.is_slice for gpu in host.gpus):  # of which the host shows the first alone
        host = replace(host, gpus=device_gpus())
        if len(options.devices) > 1:
            raise UsageError("CUDA shows a process one slice of a GPU (MIG). Name one device.")
    names = _numbers(options.devices, host, _slots(options), cuda=cuda)
    count, named = options.processes, len(names)
    if count is not None and cuda and count not in {named, 1}:
        raise UsageError(
            f"--devices names {named} GPU{'s' * (named > 1)} for {count} processes. Name as many "
            "as there are processes on this machine, or change --nproc."
        )
    options = replace(options, devices=names)
    return _narrowed(host, names, _slots(options), cuda=cuda), options


def placed(request: Request) -> Request:
    """The request on devices that no run holds; call it under the queue's lock.

    Raises:
        UsageError: one that it names is held, or too few are free; the message says by whom, and
            what to type.
        HostError: the driver, which told GPUs a moment ago, tells none.
    """
    if request.options.share or not wants_devices(request):
        return request
    cuda = request.device == "cuda"
    devices = read_devices(request.store.root, cuda=cuda)
    if cuda and not devices:
        raise _no_answer("this run")
    names = request.options.devices
    if names:
        _refuse_held(names, devices, request.store.root)
        return request
    seen = [gpu.device_name for gpu in request.cluster.gpus]
    count = gpus_of(request.processes_here, request.script, len(seen))
    held_names = {device.name for device in devices if device.runs}
    if not held_names & set(seen[:count]):
        return request
    free = [name for name in seen if name not in held_names]
    if len(free) < count:
        _refuse_held(seen[:count], devices, request.store.root)
    return on_devices(request, free[:count])


def on_unused(request: Request) -> Request:
    """The request on GPUs that no one uses, where the first ones of the host are in use.

    What names its GPUs, shares them, waits for them or takes all of them is left as it is.
    """
    options, gpus = request.options, request.cluster.gpus
    decided = options.devices or options.share or options.queue or options.cluster is not None
    if request.device == "cpu" or decided or request.cluster.nodes > 1:
        return request
    count = gpus_of(request.processes_here, request.script, len(gpus))
    if count >= len(gpus):
        return request
    in_use = {
        device.name for device in read_devices(request.store.root, cuda=True) if device.is_in_use
    }
    seen = [gpu.device_name for gpu in gpus]
    best = sorted(seen, key=lambda name: name in in_use)[:count]
    if best == seen[:count]:
        return request
    return on_devices(request, sorted(best, key=seen.index))


def gpus_of(ranks: int, script: Path, seen: int) -> int:
    """How many of the GPUs that it sees a run uses: a lone process may drive all of them."""
    return seen if ranks == 1 and takes_several(script) else ranks


def drives_all_gpus(request: Request) -> bool:
    """Whether one process of it drives all GPUs that it sees, and not the first of them alone."""
    is_single_process = request.device == "cuda" and request.processes_here == 1
    return is_single_process and takes_several(request.script)


def waiting_share(cluster: Cluster, ranks: int, script: Path, options: LaunchOptions) -> Cluster:
    """What of this host a run gets that waits in the queue for any devices: as many as ranks.

    Of the GPUs all are kept: which it gets is not known yet.
    """
    if not options.queue or options.devices:
        return cluster
    cuda = bool(cluster.gpus) and not options.cpu
    slots = _slots(options)
    of = len(cluster.gpus) if cuda else slots
    count = gpus_of(ranks, script, of) if cuda else min(ranks, slots)
    names = (
        [gpu.device_name for gpu in cluster.gpus] if cuda else [str(slot) for slot in range(slots)]
    )
    share = _narrowed(cluster, names[:count], slots, cuda=cuda)
    return replace(share, gpus=cluster.gpus)


def wants_devices(request: Request) -> bool:
    """Whether it needs devices of its own: not a run on all cores of a CPU host."""
    return request.device == "cuda" or bool(request.options.devices)


def on_devices(request: Request, names: Sequence[str]) -> Request:
    """The request with these devices alone."""
    options = replace(request.options, devices=tuple(names))
    cuda = request.device == "cuda"
    cluster = _narrowed(request.cluster, names, _slots(options), cuda=cuda)
    return replace(request, options=options, cluster=cluster)


def check_free(paths: RunPaths, run: RunRecord) -> None:
    """Refuse to start a run again on devices that another one holds; under the queue's lock.

    Raises:
        UsageError: one is held, or there is none of that name any more.
        HostError: the driver tells no GPU at all.
    """
    names = held_by(run)
    if run.share or not names:
        return
    cuda = run.device == "cuda"
    devices = read_devices(paths.directory.parent, cuda=cuda, excluding=paths.directory.name)
    if cuda and run.devices and not devices:  # it had some, so the driver does not answer
        raise _no_answer(run.run)
    gone = [name for name in run.devices if name not in {device.name for device in devices}]
    if gone:
        there = ", ".join(device.name for device in devices)
        raise UsageError(
            f"{run.run} had device {', '.join(gone)}, and this host has {there or 'none'}. Name "
            "others: --devices D,D"
        )
    _refuse_held(names, devices, paths.directory.parent)


def _no_answer(subject: str) -> HostError:
    """That a driver which told some GPUs before tells none: no word on who holds them."""
    return HostError(
        driver_silence()
        or f"The GPU driver does not answer, so {subject} cannot have its GPUs: see nvidia-smi."
    )


def assigned(run: RunRecord, names: Sequence[str]) -> RunRecord:
    """The record of a run that gets these devices at its start."""
    again = replace(run, devices=list(names))
    if run.device != "cuda" or not names:
        return again
    recorded: list[dict[str, Any]] = run.cluster.get("gpus") or []
    seen = [asdict(gpu) for gpu in device_gpus()]
    gpus_by_name = {
        device_name(gpu.get("index"), gpu.get("uuid")): gpu for gpu in [*seen, *recorded]
    }
    gpus = [gpus_by_name[name] for name in names if name in gpus_by_name]
    return replace(
        again, cluster={**run.cluster, "gpus": gpus}, environment=run.environment | visible(names)
    )


def _slots(options: LaunchOptions) -> int:
    store = options.store if isinstance(options.store, Store) else Store(options.store)
    return slot_count(QueueFiles(store.root).settings.slots)


def _numbers(words: Sequence[str], host: Cluster, slots: int, *, cuda: bool) -> tuple[str, ...]:
    """The names by number, in the order given."""
    valid_names = (
        [gpu.device_name for gpu in host.gpus] if cuda else [str(slot) for slot in range(slots)]
    )
    kind = "GPU" if cuda else "slot of cores"
    names = list[str]()
    for word in words:
        name = _by_uuid(word, host) if cuda and not word.isdecimal() else word
        if name not in valid_names:
            there = ", ".join(valid_names[:_MOST_NAMED]) + (
                " …" if len(valid_names) > _MOST_NAMED else ""
            )
            more = "" if cuda else " Another number of slots: workbench queue slots N."
            raise UsageError(f"This host has no {kind} {word!r}, but {there}.{more}")
        if name in names:
            raise UsageError(f"--devices {','.join(words)}: {word} is named twice. Name it once.")
        names.append(name)
    return tuple(names)


def _by_uuid(word: str, host: Cluster) -> str | None:
    """The number of the GPU whose UUID begins so; None = no single one's does."""
    uuids = {gpu.device_name: gpu.uuid or "" for gpu in host.gpus}
    matching = [name for name, uuid in uuids.items() if len(word) > 4 and uuid.startswith(word)]
    return matching[0] if len(matching) == 1 else None


def _narrowed(host: Cluster, names: Sequence[str], slots: int, *, cuda: bool) -> Cluster:
    """The host with these devices; its price in their proportion."""
    of = len(host.gpus) if cuda else slots
    price = None if host.usd_per_hour is None else host.usd_per_hour * len(names) / of
    if cuda:
        by_name = {gpu.device_name: gpu for gpu in host.gpus}
        return replace(host, gpus=tuple(by_name[name] for name in names), usd_per_hour=price)
    cores = None if host.cpu_cores is None else max(1, host.cpu_cores * len(names) // of)
    return replace(host, cpu_cores=cores, usd_per_hour=price)


def _refuse_held(names: Sequence[str], devices: Sequence[Device], store: Path) -> None:
    by_name = {device.name: device for device in devices}
    held_devices = [by_name[name] for name in names if name in by_name and by_name[name].runs]
    if not held_devices:
        return
    free = [device.name for device in devices if not device.runs]
    holders = "; ".join(
        f"{device.title} is held by {', '.join(holder.text for holder in device.runs)}"
        for device in held_devices
    )
    first = held_devices[0].runs[0]
    wait = (
        f"wait for it ({command_in(store, 'attach', first.run)}), "
        if first.run
        else "wait for it, "
    )
    count = len(names)
    other = f"use free ones (--devices {','.join(free[:count])}), " if len(free) >= count else ""
    raise UsageError(
        f"{holders}. To start this run, {wait}{other}file it in the queue (--queue), or "
        "share what is held (--share)."
    )
