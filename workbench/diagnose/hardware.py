"""What the driver tells of the GPUs: throttling, falling clocks, memory errors, Xids, lost cards.

Clock event reasons as in nvml.h (nvmlClocksEventReasons); Xid numbers and what to do about them as
in NVIDIA's Xid catalogue (docs.nvidia.com/deploy/xid-errors).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, cast

from workbench.diagnose.evidence import BEST_CLOCKS, Evidence, answers
from workbench.observe.gpu_errors import GpuError, GpuErrorWatch
from workbench.observe.throttle import HW_SLOWDOWN, POWER_BRAKE, POWER_CAP, THERMAL
from workbench.store.findings import Finding
from workbench.store.schema import SystemLine

_LASTING_SECONDS = 60.0
_LASTING_SHARE = 0.8  # of the samples of that time
_LOST_SAMPLES, _SILENT_SAMPLES = 3, 12  # of one GPU, and of all at once
XIDS: dict[int, tuple[str, str]] = {
    13: (
        "an exception in a kernel",
        "Usually a bug in the program: run with CUDA_LAUNCH_BLOCKING=1.",
    ),
    31: (
        "an illegal address in a kernel",
        "Usually a bug in the program: run under compute-sanitizer.",
    ),
    48: ("an uncorrectable (double-bit) memory error", "Exclude the GPU; it must be reset."),
    63: ("a memory row that will be remapped", "Continue; reset the GPU at the next pause."),
    64: ("a memory row that could not be remapped", "Exclude the GPU; it must be replaced."),
    74: ("an error of an NVLink", "Exclude the GPU; have the link checked."),
    79: ("a GPU that has fallen off the bus", "Use another machine; this one must be restarted."),
    92: ("many corrected memory errors", "Continue; have the GPU tested."),
    94: ("a contained memory error", "Restart the run; reset the GPU."),
    95: ("an uncontained memory error", "Exclude the GPU; it must be reset."),
    119: ("GPU system processor (GSP) timeout", "The machine must be restarted."),
    120: ("an error of the GPU's system processor", "The machine must be restarted."),
}
_PROGRAM = {13, 31}  # the program's own mistakes, most of the time


def throttling(evidence: Evidence) -> Iterator[Finding]:
    """A GPU that is slowed down by heat or by its power supply for more than a minute."""
    for index, seen in _by_gpu(evidence).items():
        masks = [one["throttle_reasons"] for one in seen if _number(one.get("throttle_reasons"))]
        if len(masks) < 10:
            continue
        hot = sum(_is_hot(int(mask)) for mask in masks) / len(masks)
        brake = sum(bool(int(mask) & POWER_BRAKE) for mask in masks) / len(masks)
        capped = sum(bool(int(mask) & POWER_CAP) for mask in masks) / len(masks)
        clocks = f"{_clock(seen):.0f} MHz" if _clock(seen) else "n/a"
        rank = _rank(evidence, index)
        share = evidence.bound("thermal-throttling", rank, _LASTING_SHARE, 0.3)
        if hot >= share:
            degrees = [one["temperature_c"] for one in seen if _number(one.get("temperature_c"))]
            warmest = max(degrees, default=None)
            yield Finding(
                kind="thermal-throttling",
                rank=rank,
                confidence=0.95,
                evidence=f"gpu{index} was throttled for heat in {hot:.0%} of the last minute's "
                f"samples ({'n/a' if warmest is None else f'{warmest:.0f}'} °C, {clocks}).",
                cause=(
                    f"gpu{index} is too hot: air flow, dust, or a hot neighbour. All ranks wait "
                    "for the slowest."
                ),
                next=(
                    "Check the cooling, lower the power limit (nvidia-smi -pl), or use another "
                    "machine."
                ),
            )
        # At its power limit a card is doing what it can: only clocks well below are a finding.
        low = _clock(seen) < 0.7 * _best_clock(evidence, index)
        share = evidence.bound("power-throttling", rank, _LASTING_SHARE, 0.3)
        if brake >= share or (capped >= share and low):
            yield Finding(
                kind="power-throttling",
                rank=rank,
                confidence=0.85,
                evidence=f"gpu{index} was throttled for power in {max(brake, capped):.0%} of "
                f"the last minute's samples ({clocks}, once {_best_clock(evidence, index):.0f}).",
                cause=f"gpu{index} has a low power limit, or its power supply limits it.",
                next="Look at nvidia-smi -q -d POWER; raise the limit or use another machine.",
            )


def slow_clock(evidence: Evidence) -> Iterator[Finding]:
    """A GPU that works with clocks well below its peers' or its own best."""
    by_gpu = _by_gpu(evidence)
    working = {
        index: seen
        for index, seen in by_gpu.items()
        if len(seen) >= 10 and median(one.get("util") or 0.0 for one in seen) > 50 and _clock(seen)
    }
    clocks = {index: _clock(seen) for index, seen in working.items()}
    for index, clock in clocks.items():
        peers = [other for number, other in clocks.items() if number != index]
        best = max(_best_clock(evidence, index), median(peers) if len(peers) > 1 else 0.0)
        rank = _rank(evidence, index)
        throttled = {("thermal-throttling", rank), ("power-throttling", rank)} & evidence.standing
        if throttled or clock > evidence.bound("slow-clock", rank, 0.7, 0.85) * best:
            continue
        yield Finding(
            kind="slow-clock",
            rank=rank,
            confidence=0.7,
            evidence=(
                f"gpu{index} runs at {clock:.0f} MHz (median of a minute); it has reached "
                f"{best:.0f} MHz before, or its peers run at that."
            ),
            cause=f"Something limits gpu{index}'s clock: heat, power, or a clock limit.",
            next="Look at nvidia-smi -q -d CLOCK,PERFORMANCE; reset limits with nvidia-smi -rgc.",
        )


def lost_gpu(evidence: Evidence) -> Iterator[Finding]:
    """A GPU that answered before and does not any more; or none does."""
    latest = list(evidence.samples)[-_SILENT_SAMPLES:]
    if len(latest) < _LOST_SAMPLES:
        return
    last = {index: _answered(index, latest[-_LOST_SAMPLES:]) for index in evidence.answered}
    if len(last) > 1 and not any(last.values()):  # the driver may be busy for a moment
        if len(latest) == _SILENT_SAMPLES and not any(_answered(one, latest) for one in last):
            yield _lost(None, "No GPU returned a reading", latest, "The driver does not answer.")
        return
    for index in sorted(index for index, answered in last.items() if not answered):
        cause = f"gpu{index} has fallen off the bus or its driver does not answer."
        yield _lost(
            _rank(evidence, index),
            f"gpu{index} returned no reading",
            latest[-_LOST_SAMPLES:],
            cause,
        )


def _answered(index: int, samples: Sequence[SystemLine]) -> bool:
    return any(answers(gpu) for one in samples for gpu in one["gpus"] if gpu["index"] == index)


def _lost(rank: int | None, who: str, samples: Sequence[SystemLine], cause: str) -> Finding:
    return Finding(
        kind="gpu-lost",
        rank=rank,
        severity="error",
        confidence=0.85,
        evidence=f"{who} in the last {len(samples)} samples; it did before.",
        cause=cause,
        next="Stop the run, restart or replace the machine, and resume.",
    )


@dataclass(slots=True)
class GpuErrors:
    """Xids and memory errors of every machine: of this one as asked here, of others as they told.

    A driver that hangs holds up no other rule.
    """

    watch: GpuErrorWatch = field(default_factory=GpuErrorWatch)
    found: dict[tuple[int, int | None, int | None], Finding] = field(
        default_factory=dict[tuple[int, "int | None", "int | None"], Finding]
    )

    def rule(self, evidence: Evidence) -> Iterator[Finding]:
        """Yield what has been seen since the start; an error does not go away."""
        if evidence.run.device != "cuda" or not evidence.facts.ranks:
            return
        order = [int(gpu["index"]) for gpu in _gpus(evidence)]
        here = self.watch.look(order, evidence.facts.monotonic)
        told = [_Card(node=0, order=tuple(order), error=one) for one in here]
        for node in evidence.facts.nodes:
            told += [
                _Card(node=node.node, order=tuple(node.gpus), error=one) for one in node.gpu_errors
            ]
        for card in told:
            say = _memory_error if card.error.xid is None else _xid
            self.found[card.node, card.error.index, card.error.xid] = say(evidence, card)
        yield from self.found.values()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Card:
    """An error with the card that it is of."""

    node: int
    order: tuple[int, ...]  # indices of that machine's cards, as its ranks take them
    error: GpuError

    def name(self, evidence: Evidence) -> str:
        of = f" of node {self.node}" if evidence.run.nodes > 1 else ""
        return f"A GPU{of}" if self.error.index is None else f"gpu{self.error.index}{of}"

    def rank(self, evidence: Evidence) -> int | None:
        """Ranks take the visible GPUs in order, each machine an equal share of them."""
        each = evidence.processes // max(1, evidence.run.nodes)
        place = self.order.index(self.error.index) if self.error.index in self.order else None
        return None if place is None or place >= each else self.node * each + place


def _xid(evidence: Evidence, card: _Card) -> Finding:
    xid = card.error.xid or 0
    what, action = XIDS.get(xid, ("an error the driver reports", "See dmesg."))
    name = card.name(evidence)
    return Finding(
        kind=f"xid-{xid}",
        rank=card.rank(evidence),
        step=evidence.steps or None,
        severity="warning" if xid in _PROGRAM | {63, 92} else "error",
        confidence=0.7 if xid in _PROGRAM else 0.95,
        evidence=f"The driver reported Xid {xid} on {name}.",
        cause=f"{name}: {what}.",
        next=action,
    )


def _memory_error(evidence: Evidence, card: _Card) -> Finding:
    name, grown = card.name(evidence), card.error.count
    return Finding(
        kind="ecc-errors",
        rank=card.rank(evidence),
        severity="error",
        confidence=0.95,
        evidence=f"{name} counted {grown} uncorrectable memory errors since the start.",
        cause=f"{name}'s memory is faulty: the results of its rank cannot be trusted.",
        next="Stop, exclude this GPU, and resume from an earlier checkpoint.",
    )


def _by_gpu(evidence: Evidence) -> dict[int, list[dict[str, Any]]]:
    """Each GPU's samples of the last minute; none before a minute is covered."""
    samples = evidence.samples
    if not samples or samples[-1]["time"] - samples[0]["time"] < _LASTING_SECONDS:
        return {}
    oldest = samples[-1]["time"] - _LASTING_SECONDS
    by_gpu: dict[int, list[dict[str, Any]]] = {}
    for one in reversed(samples):
        if one["time"] < oldest:
            break
        for gpu in one["gpus"]:
            by_gpu.setdefault(int(gpu["index"]), []).append(gpu)
    return by_gpu


def _is_hot(mask: int) -> bool:
    """Whether heat slows the GPU. A hardware slowdown is told of a power brake too."""
    slowed = bool(mask & HW_SLOWDOWN) and not mask & POWER_BRAKE
    return slowed or bool(mask & THERMAL)


def _clock(seen: list[dict[str, Any]]) -> float:
    """Median clock; 0 where none was read."""
    clocks = [float(one["sm_clock_mhz"]) for one in seen if _number(one.get("sm_clock_mhz"))]
    return median(clocks) if clocks else 0.0


def _best_clock(evidence: Evidence, index: int) -> float:
    """The clock that the GPU reached while it worked, ten times at least."""
    best = evidence.best_clocks.get(index, [])
    return best[0] if len(best) >= BEST_CLOCKS else 0.0


def _gpus(evidence: Evidence) -> list[dict[str, Any]]:
    return cast("list[dict[str, Any]]", evidence.cluster.get("gpus") or [])


def _rank(evidence: Evidence, index: int) -> int | None:
    """The rank on a GPU: ranks take the visible GPUs in order."""
    order = [int(gpu["index"]) for gpu in _gpus(evidence)]
    rank = order.index(index) if index in order else None
    return rank if rank is not None and rank < evidence.processes else None


def _number(value: object) -> bool:
    return isinstance(value, int | float)


RULES = (throttling, slow_clock, lost_gpu)
