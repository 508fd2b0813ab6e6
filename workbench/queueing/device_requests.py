"""What the runs of a queue ask for, from their records, and what is predicted of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from workbench.describe.bounded_calls import driver_silence
from workbench.describe.detection import forget_driver
from workbench.describe.hardware import device_name
from workbench.launching.prepare.devices import gpus_of
from workbench.observe.devices import Device, read_devices
from workbench.queueing.order import DeviceRequest
from workbench.store.files import read_json
from workbench.store.layout import RunPaths
from workbench.store.run_record import RunRecord


def all_devices(store: Path) -> tuple[Device, ...]:
    """The GPUs of this host, then its slots."""
    return (*read_devices(store, cuda=True), *read_devices(store, cuda=False))


def device_request(run: RunRecord, devices: Sequence[Device]) -> DeviceRequest:
    """What a run asks for among these devices."""
    cuda = run.device == "cuda"
    names = [device.name for device in devices if device.kind == ("gpu" if cuda else "slot")]
    prefix = "gpu" if cuda else "slot"
    if run.devices:
        allowed, count = [name for name in run.devices if name in names], len(run.devices)
    elif cuda:
        gpus: list[dict[str, Any]] = run.cluster.get("gpus") or []
        seen = {device_name(gpu.get("index"), gpu.get("uuid")) for gpu in gpus}
        allowed = [name for name in names if name in seen]
        count = gpus_of(run.processes, Path(run.script), max(1, len(seen)))
    else:
        allowed, count = names, min(run.processes, len(names))
    keys = tuple(f"{prefix}{name}" for name in allowed)
    return DeviceRequest(run=run.run, count=count, allowed=keys, share=run.share)


def gpus_wait(request: DeviceRequest, run: RunRecord, devices: Sequence[Device]) -> str:
    """Why a run on GPUs waits although those that it asks for are not there; "" = it does not.

    A run on GPUs was filed where the driver told some. One that now tells none hangs, was just
    renewed, or has lost its cards: no word on what this host has. It is looked for again.
    """
    if run.device != "cuda" or not request.impossible:
        return ""
    if any(device.kind == "gpu" for device in devices):
        return ""
    forget_driver()
    return driver_silence() or (
        "The GPU driver does not answer, so it waits. See what nvidia-smi says; where this machine "
        "has lost its GPU, restart or replace it."
    )


def load(devices: Sequence[Device]) -> dict[str, int]:
    """How many hold each device; a process that is no run counts, too: it has the memory."""
    return {device.key: len(device.holders) for device in devices}


def predicted_seconds(run: RunRecord) -> float | None:
    """Predicted length of a run; None where its end or its step's time is not known."""
    ends = [] if run.seconds_total is None else [run.seconds_total]
    step = ((run.predicted or {}).get("time") or {}).get("step_seconds")
    if step is not None and run.steps_total is not None:
        ends.append(step * run.steps_total)
    return min(ends, default=None)


def free_at(devices: Sequence[Device], store: Path, now: float) -> dict[str, float | None]:
    """When each device is predicted to be free; None = no one knows."""
    times: dict[str, float | None] = {}
    for device in devices:
        ends = [
            _end_of(RunPaths(store / holder.run)) if holder.run else None
            for holder in device.holders
        ]
        known_ends = [end for end in ends if end is not None]
        times[device.key] = max([now, *known_ends]) if len(known_ends) == len(ends) else None
    return times


def _end_of(paths: RunPaths) -> float | None:
    """The predicted end of a run that is at work."""
    view = read_json(paths.view) or {}
    left, written = view.get("eta_seconds"), view.get("written_at")
    return None if left is None or written is None else float(written) + float(left)
