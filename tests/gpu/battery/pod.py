"""The battery without a GPU: the simulated NVML shows one, and the ranks compute on the CPU.

Nothing measured so says anything about a GPU. Each row and the name of the file say "simulated",
and whoever reads measurements refuses them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

from tests.gpu.battery.values import Check, Report, Setup

DEFAULT_GPU = "h100-sxm"
_IN_PLACE = (
    "from workbench.describe import detection; "
    "from workbench.rehearsing.driver.library import is_simulated; "
    "print(is_simulated(detection.nvml()))"
)
_HEAT, _NOT_SUPPORTED = 0x40, 3  # as nvml.h numbers them
_HELD_BYTES = 5 << 30


def is_in_place() -> bool:
    """Whether programs of this machine see the simulated driver; asked in a process of its own."""
    if "POD_TIMELINE" not in os.environ:
        return False  # without one it shows nothing
    done = subprocess.run(
        [sys.executable, "-c", _IN_PLACE], capture_output=True, text=True, check=True
    )
    return done.stdout.split()[-1:] == ["True"]


def become(gpu: str, arguments: Sequence[str]) -> NoReturn:
    """This process becomes the battery on one simulated GPU."""
    battery = [sys.executable, "-m", "tests.gpu.battery", *arguments]
    driver = [sys.executable, "-m", "workbench.rehearsing.driver", "--gpu", gpu, "--count", "1"]
    os.execv(sys.executable, [*driver, "--", *battery])


def card() -> dict[str, Any]:
    """The card of every row."""
    pod = idle()
    return {
        "name": f"{pod.driver_name} (simulated)",
        "memory_total_mib": pod.gpu.memory_bytes / 2**20,
    }


def idle() -> Any:
    """The machine's GPUs while nothing runs."""
    from workbench.rehearsing.driver.pod import POD, SIMULATED, Pod

    gpu, _, count = os.environ[POD].rpartition(":")
    return Pod(gpu, int(count), driver=SIMULATED)


def prepare() -> None:
    """Before each case: the cards look like those of a training, and launches take them for real.

    The preflight would say that this torch has no CUDA. That is right, and has tests of its own.
    """
    from workbench.launching.prepare import preflight

    preflight._check_cuda = lambda _request: None
    pod = idle()
    pod.busy(0, range(pod.count)).write(Path(os.environ["POD_TIMELINE"]))
    Path(os.environ["POD_CLOCK"]).write_text("0", "ascii")


def _moments() -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """What happens to card 0: its name, the pod then, and what the pod cannot say of a reading."""
    pod = idle()
    yield "idle", pod, {}
    yield "busy", pod.busy(1, 0), {}
    yield "hot", pod.busy(2, 0, throttle=_HEAT, temperature=93, clock=1100), {}
    yield (
        "power unknown",
        pod.error(3, "nvmlDeviceGetPowerUsage", _NOT_SUPPORTED),
        {"power_w": None},
    )
    yield "lost", pod.lost(4, 0, back=5), {}
    yield "back", pod.error(5, "nvmlDeviceGetPowerUsage", 0).busy(5, 0), {}


def readings(setup: Setup) -> Report:
    """What the panels and rules read, beside what the timeline says."""
    import workbench as wb
    from workbench.observe.gpu import GpuSampler
    from workbench.observe.gpu_errors import GpuErrorWatch
    from workbench.rehearsing.cards import SimulatedDriver

    host = wb.detect_host()
    driver = SimulatedDriver(setup.out / "pod", asdict(host), idle())
    checks = [Check(name="GPUs seen by NVML", value=len(host.gpus), equals=idle().count)]
    measured: dict[str, Any] = {}
    for second, (name, pod, changed) in enumerate(_moments()):
        # A lost card that comes back has its readings again only on the timeline's own clock.
        driver.show(pod, second)
        expected = _expected(pod, name) | changed
        read = driver.sample()[0]
        measured[name] = read
        apart = {key: read.get(key) for key, value in expected.items() if read.get(key) != value}
        checks.append(Check(name=f"readings apart, {name}", value=str(apart), equals="{}"))
    watch = GpuErrorWatch()
    before = watch.look([0], 0.0)
    pod = idle().processes(0, 0, {os.getpid(): _HELD_BYTES}).at(6, 0, ecc=2).xid(6, 0, 79)
    driver.show(pod, 6.0)
    errors = {(error.xid, error.count) for error in watch.look([0], 20.0)}
    checks += [
        Check(name="errors before any", value=len(before), equals=0),
        Check(name="Xid and memory errors", value=errors == {(79, 1), (None, 2)}, equals=True),
        Check(
            name="memory of a process",
            value=GpuSampler().memory_of({os.getpid()}),
            equals=_HELD_BYTES,
        ),
    ]
    driver.go_idle()
    return Report(measured=measured, checks=tuple(checks))


def _expected(pod: Any, name: str) -> dict[str, Any]:
    reading = pod.reading(0)
    lost = {key: None for key in reading if key != "index"}
    return {"index": 0, **lost} if name == "lost" else reading
