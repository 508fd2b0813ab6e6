"""Estimates: named parts that add up to a total, with assumptions; and the memory estimate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from workbench.units import format_bytes

CONTEXT, COMMUNICATION = "framework context", "communication library"
SLACK = "allocator slack"
SAFETY = 0.04
"""Share of the card that must stay free for a run to count as fitting: the estimate's own error."""
STATES = ("parameters", "master copy", "optimizer states")
"""Parts that live all the time."""
OUTSIDE_ALLOCATOR = frozenset({CONTEXT, COMMUNICATION, SLACK})
"""Parts of the card that ``max_memory_allocated()`` does not count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """One moment of the step at which memory may be highest."""

    name: str
    """initialisation, forward end, loss backward, block backward, end of backward, root reduction,
    optimizer step: as far as they occur."""
    parts: Mapping[str, int]
    """Part name -> bytes held at that moment."""

    @property
    def total_bytes(self) -> int:
        """The parts' sum: what the allocator has handed out."""
        return sum(self.parts.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """Memory of one pipeline stage (one entry for every layout without pipeline)."""

    stage: int
    """Stage, 0 = the one with the embedding."""
    layers: int
    """Blocks on it."""
    in_flight: float
    """Micro-batches whose activations it holds at most."""
    peaks: tuple[Peak, ...]
    """The competing peaks, in the order of the step."""
    slack_bytes: int = 0
    """What the allocator takes from the card beyond the peak: fragments and other streams."""

    @property
    def peak(self) -> Peak:
        """The winning one."""
        return max(self.peaks, key=lambda peak: peak.total_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Memory of the fullest rank: three numbers, their parts, and the peaks that competed."""

    parts: Mapping[str, int]
    """Part name -> bytes at the winning peak, the card's own parts included; sums to the total."""
    assumptions: tuple[str, ...]
    """What was assumed, and where the number leaves its tested range."""
    peak: str = ""
    """Name of the winning peak."""
    peaks: Mapping[str, int] | None = None
    """Every competing peak of the fullest rank -> allocated bytes."""
    stages: tuple[StageMemory, ...] = ()
    """Every pipeline stage."""
    card_bytes: int | None = None
    """Memory of the card it was asked for; None when unknown."""
    host_bytes: int | None = None
    """Host memory of one node that offload takes; None where nothing is offloaded to it."""
    low: float = 1.0
    """Lower end of the range, as a factor on each of the three numbers."""
    high: float = 1.0
    """Upper end of the range, as a factor."""
    sources: tuple[str, ...] = ()
    """Where the formulas and constants come from."""

    @property
    def total_bytes(self) -> int:
        """The parts' sum: on the card (on CPU: resident)."""
        return sum(self.parts.values())

    @property
    def on_card_bytes(self) -> int:
        """What nvidia-smi shows: reserved + context + communication library."""
        return self.total_bytes

    @property
    def allocated_bytes(self) -> int:
        """What the allocator hands out at the peak: ``max_memory_allocated()``."""
        return sum(size for name, size in self.parts.items() if name not in OUTSIDE_ALLOCATOR)

    @property
    def reserved_bytes(self) -> int:
        """What the allocator takes from the card: ``max_memory_reserved()``."""
        return self.allocated_bytes + self.parts.get(SLACK, 0)

    @property
    def headroom_bytes(self) -> int | None:
        """Free bytes left on the card; negative when it does not fit; None without a card."""
        return None if self.card_bytes is None else self.card_bytes - self.on_card_bytes

    @property
    def fits(self) -> bool | None:
        """Whether `on_card_bytes` fits with `SAFETY` of the card to spare; None without a card."""
        if self.card_bytes is None:
            return None
        return self.on_card_bytes <= (1 - SAFETY) * self.card_bytes

    @property
    def low_bytes(self) -> int:
        """Lower end of the range of `on_card_bytes`."""
        return round(self.low * self.on_card_bytes)

    @property
    def high_bytes(self) -> int:
        """Upper end of the range of `on_card_bytes`: four of five runs lie between."""
        return round(self.high * self.on_card_bytes)

    @property
    def verdict(self) -> str:
        """fits; tight (the upper end of the range would not); does not fit; "" without a card."""
        if self.card_bytes is None:
            return ""
        if not self.fits:
            return "does not fit"
        return "fits" if self.high_bytes <= self.card_bytes else "tight"

    def document(self) -> dict[str, Any]:
        """Plain JSON form, as kept in run.json and printed by ``workbench memory --json``."""
        return {
            "parts": dict(self.parts),
            "total_bytes": self.total_bytes,
            "allocated_bytes": self.allocated_bytes,
            "reserved_bytes": self.reserved_bytes,
            "on_card_bytes": self.on_card_bytes,
            "card_bytes": self.card_bytes,
            "headroom_bytes": self.headroom_bytes,
            "fits": self.fits,
            "verdict": self.verdict or None,
            "range": None
            if self.low == self.high
            else {"low_bytes": self.low_bytes, "high_bytes": self.high_bytes},
            "host_bytes": self.host_bytes,
            "peak": self.peak,
            "peaks": dict(self.peaks or {}),
            "per_stage": [
                {
                    "stage": stage.stage,
                    "layers": stage.layers,
                    "in_flight": stage.in_flight,
                    "allocated_bytes": stage.peak.total_bytes,
                    "peak": stage.peak.name,
                    "parts": dict(stage.peak.parts),
                }
                for stage in self.stages
            ],
            "assumptions": list(self.assumptions),
            "sources": list(self.sources),
        }

    def __str__(self) -> str:
        lines = [f"{name:<26}{format_bytes(size):>12}" for name, size in self.parts.items()]
        return "\n".join([*lines, f"{'total':<26}{format_bytes(self.total_bytes):>12}"])

    __repr__ = __str__
