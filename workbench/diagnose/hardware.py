"""What the driver tells of the GPUs: throttling, falling clocks, memory errors, Xids, lost cards.

Clock event reasons as in nvml.h (nvmlClocksEventReasons); Xid numbers and what to do about them as
in NVIDIA's Xid catalogue (docs.nvidia.com/deploy/xid-errors).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from workbench.diagnose.devices import LOST_SAMPLES, SILENT_SAMPLES, Device, Reading
from workbench.diagnose.evidence import Evidence
from workbench.observe.arrivals import middle_without
from workbench.observe.gpu_errors import GpuError, GpuErrorWatch
from workbench.observe.throttle import HW_SLOWDOWN, POWER_BRAKE, POWER_CAP, THERMAL
from workbench.store.findings import Finding

_LASTING_SHARE = 0.8  # of the samples of a minute
_LEAST_SAMPLES = 10  # of it
_LEAST_PEERS = 2
XIDS: dict[int, tuple[str, str]] = {
    13: (
        "an exception in a kernel",
        "Usually a bug in the program: run with CUDA_LAUNCH_BLOCKING=1.",
    ),
    31: (
        "an illegal address in a kernel",
        "Usually a bug in the program: run under compute-sanitizer.",
    ),
    43: (
        "the driver ended the program's work on it, after an error of the program",
        "The card is fine. Look at the first error in the rank's log, and for an Xid before it.",
    ),
    45: (
        "a program's work was taken off it: the process was killed, or another error came before",
        "The card is fine. Look at how that rank ended, and for an Xid before it.",
    ),
    46: ("it stopped processing", "Exclude the GPU; it must be reset."),
    48: ("an uncorrectable (double-bit) memory error", "Exclude the GPU; it must be reset."),
    63: ("a memory row that will be remapped", "Continue; reset the GPU at the next pause."),
    64: ("a memory row that could not be remapped", "Exclude the GPU; it must be replaced."),
    69: (
        "a kernel or library made an invalid request",
        "Usually a bug in the program or a library: run with CUDA_LAUNCH_BLOCKING=1.",
    ),
    74: ("an error of an NVLink", "Exclude the GPU; have the link checked."),
    79: ("a GPU that has fallen off the bus", "Use another machine; this one must be restarted."),
    92: ("many corrected memory errors", "Continue; have the GPU tested."),
    94: ("a contained memory error", "Restart the run; reset the GPU."),
    95: ("an uncontained memory error", "Exclude the GPU; it must be reset."),
    109: (
        "a kernel was not stopped in time (context switch timeout)",
        "Usually a kernel that hangs: restart the run. If other programs have it, reset the GPU.",
    ),
    119: ("GPU system processor (GSP) timeout", "The machine must be restarted."),
    120: ("an error of the GPU's system processor", "The machine must be restarted."),
}
# Most of the time the program's own mistake, or its end. NVIDIA says: restart the application (13,
# 31, 69), do nothing (43), follow the Xid before (45). For 109 it says: reset the GPU, but lists
# programs among the causes, and a kernel that never ends is the most usual one.
_PROGRAM = {13, 31, 43, 45, 69, 109}
_HARMLESS = {63, 92}
_WARM_C = 80.0  # below it no card slows down for heat (their limits are 83 to 95 °C)


def throttling(evidence: Evidence) -> Iterator[Finding]:
    """A GPU that is slowed down by heat or by its power supply for more than a minute."""
    for device in evidence.fresh_devices():
        seen = device.minute
        masks = [reading.throttle for reading in seen if reading.throttle is not None]
        if len(masks) >= _LEAST_SAMPLES and any(masks):
            yield from _throttled(evidence, device, seen, masks)


def _throttled(
    evidence: Evidence, device: Device, seen: Sequence[Reading], masks: Sequence[int]
) -> Iterator[Finding]:
    name = evidence.device_name(device.node, device.index, device.part)
    place = evidence.device_place(device.node, device.index, device.part)
    rank = place["rank"]
    clock, best = _clock(seen), device.best_clock
    clocks = f"{clock:.0f} MHz" if clock else "n/a"
    hot = sum(map(_is_hot, seen)) / len(masks)
    if hot >= evidence.bound("thermal-throttling", rank, _LASTING_SHARE, 0.3):
        degrees = [reading.temperature_c for reading in seen if reading.temperature_c is not None]
        warmest = f"{max(degrees):.0f}" if degrees else "n/a"
        yield Finding(
            kind="thermal-throttling",
            **place,
            confidence=0.95,
            evidence=f"{name} was throttled for heat in {hot:.0%} of the last minute's samples "
            f"({warmest} °C, {clocks}).",
            cause=f"{name} is too hot: air flow, dust, or a hot neighbour. All ranks wait for the "
            "slowest.",
            next="Check the cooling, lower the power limit (nvidia-smi -pl), or use another "
            "machine.",
        )
    # At its power limit a card is doing what it can: only clocks well below are a finding.
    brake = sum(map(_is_braked, seen)) / len(masks)
    capped = sum(bool(mask & POWER_CAP) for mask in masks) / len(masks)
    share = evidence.bound("power-throttling", rank, _LASTING_SHARE, 0.3)
    if brake >= share or (capped >= share and clock < 0.7 * best):
        yield Finding(
            kind="power-throttling",
            **place,
            confidence=0.85,
            evidence=f"{name} was throttled for power in {max(brake, capped):.0%} of the last "
            f"minute's samples ({clocks}, once {best:.0f}).",
            cause=f"{name} has a low power limit, or its power supply limits it.",
            next="Look at nvidia-smi -q -d POWER; raise the limit or use another machine.",
        )


def slow_clock(evidence: Evidence) -> Iterator[Finding]:
    """A GPU that works with clocks well below those of its model on all machines, or its own best.

    A card that another rule says is throttled is left to that.
    """
    working: list[tuple[Device, str, float]] = []
    by_model: dict[str, list[float]] = {}
    for device in evidence.fresh_devices():
        seen = device.minute
        busy = len(seen) >= _LEAST_SAMPLES and median(reading.util or 0.0 for reading in seen) > 50
        clock = _clock(seen) if busy else 0.0
        if clock:
            model = evidence.device_model(device.node, device.index, device.part)
            working.append((device, model, clock))
            by_model.setdefault(model, []).append(clock)
    ordered = {model: sorted(clocks) for model, clocks in by_model.items()}
    for device, model, clock in working:
        peers = ordered[model]
        usual = middle_without(peers, clock) if len(peers) > _LEAST_PEERS else 0.0
        best = max(device.best_clock, usual)
        place = evidence.device_place(device.node, device.index, device.part)
        rank = place["rank"]
        throttled = {("thermal-throttling", rank), ("power-throttling", rank)} & evidence.standing
        if throttled or clock > evidence.bound("slow-clock", rank, 0.7, 0.85) * best:
            continue
        name = evidence.device_name(device.node, device.index, device.part)
        cause, move = _limit(name, device.minute)
        yield Finding(
            kind="slow-clock",
            **place,
            confidence=0.7,
            evidence=f"{name} runs at {clock:.0f} MHz (median of a minute); it has reached "
            f"{best:.0f} MHz before, or its peers run at that.",
            cause=cause,
            next=move,
        )


def _limit(name: str, seen: Sequence[Reading]) -> tuple[str, str]:
    """What holds a clock down, as far as the driver tells; and what to do."""
    masks = [reading.throttle for reading in seen if reading.throttle is not None]
    capped = sum(bool(mask & POWER_CAP) for mask in masks)
    if masks and capped >= _LASTING_SHARE * len(masks):
        return (
            f"{name}'s power limit holds its clock down, lower than its peers' or than before.",
            "Look at nvidia-smi -q -d POWER; raise the limit with nvidia-smi -pl.",
        )
    return (
        f"Something limits {name}'s clock: heat, power, or a clock limit.",
        "Look at nvidia-smi -q -d CLOCK,PERFORMANCE; reset limits with nvidia-smi -rgc.",
    )


def lost_gpu(evidence: Evidence) -> Iterator[Finding]:
    """A GPU that answered before and does not any more; or none of a machine does."""
    gone, silent = evidence.devices.lost(evidence.facts.monotonic)
    if silent:
        nodes = " and ".join(f"node {node}" for node in silent)
        where = f" of {nodes}" if evidence.run.nodes > 1 else ""
        yield Finding(
            **_LOST,
            node=silent[0] if len(silent) == 1 else None,
            evidence=f"No GPU{where} returned a reading in the last {SILENT_SAMPLES} samples; it "
            "did before.",
            cause=f"The driver{where} does not answer.",
        )
    for device in gone:
        name = evidence.device_name(device.node, device.index, device.part)
        yield Finding(
            **_LOST,
            **evidence.device_place(device.node, device.index, device.part),
            evidence=f"{name} returned no reading in the last {LOST_SAMPLES} samples; it did "
            "before.",
            cause=f"{name} has fallen off the bus or its driver does not answer.",
        )


_LOST: dict[str, Any] = {
    "kind": "gpu-lost",
    "severity": "error",
    "confidence": 0.85,
    "next": "Stop the run, restart or replace the machine, and resume.",
}


@dataclass(slots=True)
class GpuErrors:
    """Xids and memory errors of every machine: of this one as asked here, of others as they told.

    A driver that hangs holds up no other rule.
    """

    watch: GpuErrorWatch = field(default_factory=GpuErrorWatch)
    findings: dict[tuple[int, int | None, int | None], Finding] = field(
        default_factory=dict[tuple[int, "int | None", "int | None"], Finding]
    )

    def rule(self, evidence: Evidence) -> Iterator[Finding]:
        """Yield what has been seen since the start; an error does not go away."""
        if evidence.run.device != "cuda" or not evidence.facts.ranks:
            return
        order = [int(gpu["index"]) for gpu in evidence.run.cluster.get("gpus") or ()]
        here = self.watch.look(order, evidence.facts.monotonic)
        cards = [_Card(node=0, error=error) for error in here]
        for node in evidence.facts.nodes:
            cards += [_Card(node=node.node, error=gpu_error) for gpu_error in node.gpu_errors]
        for card in cards:
            say = _memory_error if card.error.xid is None else _xid
            self.findings[card.node, card.error.index, card.error.xid] = say(evidence, card)
        yield from self.findings.values()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Card:
    """An error with the card that it is of."""

    node: int
    error: GpuError

    def name(self, evidence: Evidence) -> str:
        if self.error.index is None:
            return "A GPU" + (f" of node {self.node}" if evidence.run.nodes > 1 else "")
        return evidence.device_name(self.node, self.error.index)


def _xid(evidence: Evidence, card: _Card) -> Finding:
    xid = card.error.xid or 0
    meaning, action = XIDS.get(xid, ("an error the driver reports", "See dmesg."))
    name = card.name(evidence)
    return Finding(
        kind=f"xid-{xid}",
        **evidence.device_place(card.node, card.error.index),
        step=evidence.steps or None,
        severity="warning" if xid in _PROGRAM | _HARMLESS else "error",
        confidence=0.7 if xid in _PROGRAM else 0.95,
        evidence=f"The driver reported Xid {xid} on {name}.",
        cause=f"{name}: {meaning}.",
        next=action,
    )


def _memory_error(evidence: Evidence, card: _Card) -> Finding:
    name, grown = card.name(evidence), card.error.count
    return Finding(
        kind="ecc-errors",
        **evidence.device_place(card.node, card.error.index),
        severity="error",
        confidence=0.95,
        evidence=f"{name} counted {grown} uncorrectable memory errors since the start.",
        cause=f"{name}'s memory is faulty: the results of its rank cannot be trusted.",
        next="Stop, exclude this GPU, and resume from an earlier checkpoint.",
    )


def _is_hot(reading: Reading) -> bool:
    """Whether heat slows the GPU."""
    mask = reading.throttle or 0
    return bool(mask & THERMAL) or (_is_unexplained(mask) and not _is_cool(reading))


def _is_braked(reading: Reading) -> bool:
    """Whether its power supply slows the GPU down, not heat and not its own power limit."""
    mask = reading.throttle or 0
    return bool(mask & POWER_BRAKE) or (_is_unexplained(mask) and _is_cool(reading))


def _is_unexplained(mask: int) -> bool:
    """A hardware slowdown is for heat or for power; not every card tells which."""
    return bool(mask & HW_SLOWDOWN) and not mask & (THERMAL | POWER_BRAKE)


def _is_cool(reading: Reading) -> bool:
    return reading.temperature_c is not None and reading.temperature_c < _WARM_C


def _clock(seen: Sequence[Reading]) -> float:
    """Median clock; 0 where none was read."""
    clocks = [reading.clock_mhz for reading in seen if reading.clock_mhz is not None]
    return median(clocks) if clocks else 0.0


RULES = (throttling, slow_clock, lost_gpu)
