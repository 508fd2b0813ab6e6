"""What every GPU of a rehearsed run shows at a moment, as a driver would tell it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from workbench.describe import detection
from workbench.errors import HostError
from workbench.observe.gpu import GpuSampler, gpus_of_record
from workbench.observe.gpu_errors import GpuError
from workbench.rehearsing.driver import library
from workbench.rehearsing.driver.pod import MOST_CARDS, POD, PROFILES, SIMULATED, Pod, pod_name
from workbench.rehearsing.interruptions import ECC, LOST
from workbench.rehearsing.schedule import THROTTLED_CLOCK, Attempt, Schedule, Segment

_XIDS = {LOST: 79, ECC: 48}
_HOT, _THERMAL = 93, 0x40  # degrees Celsius; NVML's software thermal slowdown


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The GPUs of every machine of the run."""

    gpu: str
    """Id in the catalogue."""
    count: int
    """Of one machine."""
    used_bytes: int
    """What the training holds on each."""


@final
class Cards:
    """Follows a schedule; ask it in the order of time."""

    def __init__(self, machine: Machine, plan: Schedule) -> None:
        self.machine, self._plan = machine, plan
        self._xids: list[tuple[float, int, int]] = []
        self._readings: dict[str, dict[str, Any]] = {}
        for attempt in plan.attempts:
            event = attempt.event
            if event is not None and event.cause in _XIDS:
                self._xids.append((event.at, event.gpu, _XIDS[event.cause]))

    def state(self, attempt: Attempt, segment: Segment, at: float) -> Mapping[int, str]:
        """What each GPU of all machines does: idle, busy, waiting, saving, hot, lost or ecc."""
        kinds = {"setup": "idle", "work": "busy", "save": "saving", "stalled": "waiting"}
        states = dict.fromkeys(range(self._plan.work.gpus), kinds[segment.kind])
        for slowdown in self._plan.slow if segment.kind == "work" else ():
            if slowdown.begin <= at < slowdown.end:
                states[slowdown.gpu] = "hot"
        if segment.kind == "stalled" and attempt.event is not None:
            states[attempt.event.gpu] = "lost" if attempt.event.cause == LOST else "ecc"
        return states

    def pod(self, node: int, states: Mapping[int, str], at: float) -> Pod:
        """One machine's GPUs at that moment."""
        count = self.machine.count
        first, pod = node * count, Pod(self.machine.gpu, count, driver=SIMULATED)
        for index in range(self.machine.count):
            self._show(pod, index, states.get(first + index, "idle"))
        for second, gpu, number in self._xids:
            if second <= at and first <= gpu < first + self.machine.count:
                pod.xid(second, gpu - first, number)
        return pod

    def errors(self, node: int, states: Mapping[int, str], at: float) -> list[GpuError]:
        """What a machine's agent would have reported of its driver's errors until then."""
        first, count = node * self.machine.count, self.machine.count
        errors = [
            GpuError(index=gpu - first, xid=number)
            for second, gpu, number in self._xids
            if second <= at and first <= gpu < first + count
        ]
        bad = (index for index in range(count) if states.get(first + index) == "ecc")
        return [*errors, *(GpuError(index=index, count=1) for index in bad)]

    def readings(self, node: int, states: Mapping[int, str]) -> list[dict[str, Any]]:
        """What a sampler reads of one machine's GPUs in those states."""
        first = node * self.machine.count
        return [
            {**self._reading(states.get(first + index, "idle")), "index": index}
            for index in range(self.machine.count)
        ]

    def _reading(self, state: str) -> dict[str, Any]:
        if state not in self._readings:
            pod = Pod(self.machine.gpu, 1)
            self._show(pod, 0, state)
            self._readings[state] = pod.reading(0)
        return self._readings[state]

    def _show(self, pod: Pod, index: int, state: str) -> None:
        used = self.machine.used_bytes
        if state == "idle":
            return
        pod.busy(0, index, used=used, throttle=0)
        watts = round(1000 * (pod.gpu.tdp_w or 0))
        if state in {"saving", "waiting", "ecc"}:
            pod.at(0, index, util=8 if state == "saving" else 100, power_mw=round(0.3 * watts))
        if state == "hot":
            slow = (
                {} if pod.max_clock is None else {"clock": round(THROTTLED_CLOCK * pod.max_clock)}
            )
            pod.at(0, index, throttle=_THERMAL, temperature=_HOT, **slow)
        if state == "ecc":
            pod.at(0, index, ecc=1)
        if state == "lost":
            pod.lost(0, index)


@final
class SimulatedDriver:
    """The first machine's GPUs, shown to this process and to others by the simulated NVML."""

    def __init__(self, folder: Path, cluster: Mapping[str, Any], idle: Pod) -> None:
        """Put the driver in place for this process, which must not have asked another one.

        On a simulated machine of the same GPUs it is that machine's own, which all its processes
        see; else its files lie in `folder`.

        Raises:
            HostError: it cannot be built, or this process has the host's driver already.
        """
        self._timeline, self._clock = folder / "timeline", folder / "clock"
        if os.environ.get(POD) == pod_name(idle.gpu.id, idle.count):
            self._timeline = Path(os.environ["POD_TIMELINE"])
            self._clock = Path(os.environ["POD_CLOCK"])
        else:
            folder.mkdir(mode=0o700, exist_ok=True)
        self._idle = idle
        self.show(idle, 0.0)
        os.environ.update(library.environment(self._timeline, self._clock))
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
        library.take_place()
        detection.forget_driver()
        if not library.is_simulated(detection.nvml()):
            raise HostError(
                "This process has loaded the host's GPU driver already. Rehearse in a process of "
                "its own: workbench rehearse …"
            )
        self._sampler = GpuSampler(gpus_of_record(cluster))

    def show(self, pod: Pod, at: float) -> None:
        """What the driver tells from now on; `at` is its clock."""
        pod.write(self._timeline)
        self.tick(at)

    def tick(self, at: float) -> None:
        """Set the driver's clock."""
        new = self._clock.with_suffix(".new")
        new.write_text(f"{at:.3f}", encoding="ascii")
        new.replace(self._clock)

    def go_idle(self) -> None:
        """The GPUs are idle again."""
        self._idle.write(self._timeline)

    def sample(self) -> list[dict[str, Any]]:
        """What a supervisor reads."""
        return [sample.document() for sample in self._sampler.sample()]


def why_no_driver(machine: Machine) -> str:
    """Why the first machine's GPUs cannot be shown by the simulated driver; "" = they can."""
    if machine.gpu not in PROFILES:
        return f"The simulated driver has no {machine.gpu}: it has {', '.join(PROFILES)}."
    if machine.count > MOST_CARDS:
        return f"The simulated driver shows {MOST_CARDS} GPUs of a machine, not {machine.count}."
    if library.compiler() is None:
        return (
            "The simulated driver needs a C compiler (cc), so errors that a driver reports (Xid, "
            "ECC) are left out. Install one: apt-get install gcc libc6-dev"
        )
    return ""
