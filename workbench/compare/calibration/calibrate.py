"""Measure this host in a minute, in processes of their own, and keep what was found."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.compare.calibration.probe_processes import ProbeProcesses
from workbench.describe import Cluster, Conditions
from workbench.describe.detection import detect_host
from workbench.describe.torch_build import why_no_cuda
from workbench.errors import HostError, UsageError
from workbench.estimate.calibration import FORMAT, Calibration, read
from workbench.store.calibrations import (
    folder,
    host_key,
    read_calibration,
    unwritable,
    write_calibration,
)

Progress = Callable[[float, str], None]
"""Told the share that is done (0 … 1) and what is measured now."""
CPU_PROCESSES = (1, 2, 4)
LEAST_SECONDS, USUAL_SECONDS = 5.0, 60.0
QUICK_SECONDS = 20.0
STEP_SECONDS = 10.0
"""With `steps_only` and one number of processes: enough for a prediction of the recipe's step."""
STEPS_ONLY = "steps only; disk and loader were not measured (workbench calibrate measures all)"
FRESH_SECONDS = 30 * 86400.0
"""Older than this, drivers, clocks and neighbours may be others."""
LOADING_SHARE = 0.42  # of the time goes into starting the processes and into rounds begun late


def calibrate(
    store: str | os.PathLike[str] | None = None,
    *,
    cluster: Cluster | None = None,
    seconds: float = USUAL_SECONDS,
    on_progress: Progress | None = None,
    cpu: bool = False,
    processes: Sequence[int] | None = None,
    steps_only: bool = False,
) -> Calibration:
    """Measure this host and keep the result in the store; Ctrl-C leaves the earlier one as it was.

    Args:
        store: The run store [default: $WORKBENCH_STORE or ./runs].
        cluster: This host as `detect_host` describes it; None = detect it.
        seconds: About how long it may take on a host that does nothing else.
        on_progress: Told how far it is, in this thread, several times a second; what it raises
            ends the measurement.
        cpu: Measure the CPU of a machine with GPUs.
        processes: Numbers of processes that measure side by side, 1 among them; None = 1, 2 and 4
            on a CPU, one and all of the GPUs elsewhere.
        steps_only: Measure only what a step's time rests on, with `processes` and no others; see
            `STEP_SECONDS`.

    Raises:
        UsageError: less than 5 s, or a cluster that is not this host.
        StoreError: the store cannot be written.
        HostError: torch cannot use the GPUs, or a probe died; the message has its last words.
    """
    host = cluster or detect_host()
    on_gpu = bool(host.gpus) and not cpu
    _check(host, seconds, on_gpu=on_gpu)
    began = time.time()
    key = host_key(host, cpu=cpu)
    usual = (len(host.gpus),) if on_gpu else CPU_PROCESSES
    single_process = () if steps_only and processes else (1,)
    sizes = sorted({*single_process, *(processes or usual)})
    where = _made(folder(store))
    scope = _Scope(sizes=sizes, seconds=seconds, on_gpu=on_gpu, steps_only=steps_only)
    measured = _measure(host, where, scope, on_progress)
    if steps_only:
        measured["notes"] = [*measured["notes"], STEPS_ONLY]
    made = read(
        {
            "format": FORMAT,
            "key": key,
            "host": host.name,
            "device": "cuda" if on_gpu else "cpu",
            "device_name": host.gpus[0].name if on_gpu else host.cpu_name,
            "gpu": host.accelerator.id if on_gpu and host.accelerator else None,
            "gpus": len(host.gpus) if on_gpu else 0,
            "cores": host.cpu_cores or 1,
            "measured_at": time.time(),
            "seconds": time.time() - began,
            **measured,
        }
    )
    assert made is not None, "it has just been made"
    write_calibration(store, key, made.document())
    return made


def _check(host: Cluster, seconds: float, *, on_gpu: bool) -> None:
    if not seconds >= LEAST_SECONDS:
        raise UsageError(
            f"{seconds:g} s is too short for a calibration. Give at least {LEAST_SECONDS:g} s; "
            f"{USUAL_SECONDS:g} s is usual."
        )
    if host.nodes > 1 or host.name != detect_host().name:
        raise UsageError(
            f"{host.name!r} is not this host and cannot be measured from here. Omit the cluster, "
            "or run workbench calibrate there."
        )
    why = why_no_cuda() if on_gpu else None
    if why is not None:
        raise HostError(f"{why} Or measure the CPU with --cpu.")


def stored_calibration(
    store: str | os.PathLike[str] | None = None,
    *,
    cluster: Cluster | None = None,
    cpu: bool = False,
) -> Calibration | None:
    """This host's calibration of an earlier time; None where there is none, or of another host."""
    host = cluster or detect_host()
    return read(read_calibration(store, host_key(host, cpu=cpu)))


def is_fresh(calibration: Calibration | None, now: float) -> bool:
    """Whether it is there and of the last 30 days; `now` in seconds since 1970."""
    return calibration is not None and 0 <= now - calibration.measured_at < FRESH_SECONDS


def measured_conditions(
    cluster: Cluster, store: str | os.PathLike[str] | None = None
) -> Conditions | None:
    """What an estimate is to use where `cluster` is this host, or some of its GPUs; else None.

    A cluster that was described (`Cluster.rented`) gets the catalog's figures, also where it has
    the same GPU: another machine is another machine.
    """
    if cluster.accelerator is None:
        return None
    host = detect_host()
    calibration = stored_calibration(store, cluster=host)
    return (
        calibration.conditions() if calibration is not None and calibration.fits(cluster) else None
    )


def _made(path: Path) -> Path:
    """The folder, so that an unwritable store is reported before the minute, not after."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(path, error) from error
    return path


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scope:
    """What is measured."""

    sizes: list[int]
    """Numbers of processes."""
    seconds: float
    """About how long all of it may take."""
    on_gpu: bool
    """Else on the CPU."""
    steps_only: bool
    """Neither disk nor loader."""


def _measure(
    host: Cluster, where: Path, scope: _Scope, on_progress: Progress | None
) -> dict[str, Any]:
    """All rows and rates, by field of `Calibration`."""
    collected = _ProbeResults(on_progress)
    collected.take({})
    probes = ProbeProcesses(
        scope.sizes,
        device="cuda" if scope.on_gpu else "cpu",
        cores=host.cpu_cores or 1,
        seconds=scope.seconds * (1 - LOADING_SHARE),
        folder=where,
        steps_only=scope.steps_only,
    )
    try:
        probes.follow(collected.take)
    finally:
        probes.end()
    if on_progress is not None:
        on_progress(1.0, "done")
    return collected.values


class _ProbeResults:
    """Gathers what the probes tell, and hands on how far they are."""

    def __init__(self, on_progress: Progress | None) -> None:
        self.values: dict[str, Any] = {"notes": []}
        self._on_progress = on_progress
        self._last = (0.0, "starting")

    def take(self, message: Mapping[str, Any]) -> None:
        """One message of the first process; an empty one only says that time has passed."""
        if "progress" in message:
            self._last = (message["progress"], message["text"])
        if self._on_progress is not None:
            self._on_progress(*self._last)
        for name, value in message.get("found", {}).items():
            if isinstance(value, list):
                self.values.setdefault(name, []).extend(value)
            else:
                self.values[name] = value
        if message.get("done"):
            self.values["versions"] = message["versions"]
