"""What a simulation found: the value that the parent hands out, without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from workbench.errors import WorkbenchError
from workbench.units import format_bytes, format_seconds


class SimulationUnavailable(WorkbenchError):  # noqa: N818  (a state of affairs, not a mistake)
    """No exact simulation: not expressible, no torch, cancelled, out of time, or the child died."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedStage:
    """One pipeline stage's memory."""

    stage: int
    """Stage, 0 = the one with the embedding."""
    layers: int
    """Blocks on it."""
    allocated_bytes: int
    """Peak of live bytes."""
    reserved_bytes: int
    """What the default allocator takes for it."""
    smallest_card_bytes: int
    """Smallest capacity with which the replay succeeds."""
    peak: str
    """Phase of the peak."""
    parts: Mapping[str, int]
    """Part -> bytes at the peak."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """Memory of the fullest rank as the real model and layout produced it on fake tensors."""

    allocated_bytes: int
    """Peak of live storages in multiples of 512 bytes: what ``max_memory_allocated`` measures."""
    reserved_bytes: int
    """Peak that the default caching allocator takes from the card: ``max_memory_reserved``."""
    reserved_expandable_bytes: int
    """The same with ``expandable_segments:True``."""
    smallest_card_bytes: int
    """Least memory (context left out) with which it runs when cached segments are given back."""
    parts: Mapping[str, int]
    """Part -> bytes at the allocated peak; they sum to `allocated_bytes`."""
    peak: str
    """Phase of the peak: forward, loss, loss backward, backward or optimizer step."""
    peak_event: int = 0
    """Event at which the peak is reached; see `timeline`."""
    timeline: tuple[tuple[int, Mapping[str, int]], ...] = ()
    """At most 2000 (event, part -> bytes), each the highest moment of its stretch of the run."""
    phases: tuple[tuple[int, str], ...] = ()
    """(first event, phase) in order, for the marks on the timeline."""
    per_stage: tuple[SimulatedStage, ...] = ()
    """Every pipeline stage; empty without pipeline."""
    seconds: float
    """Time the simulation took, the start of its process left out."""
    assumptions: tuple[str, ...] = ()
    """What differs from a real run, and which patches did not apply."""
    versions: Mapping[str, str]
    """torch and transformers that were simulated with."""
    card_bytes: int | None = None
    """Memory that the card leaves to the allocator; None when not asked."""
    method: str = "simulation"
    """How the numbers came about."""

    @property
    def fits(self) -> bool | None:
        """Whether it runs within `card_bytes`; None without a card."""
        return None if self.card_bytes is None else self.smallest_card_bytes <= self.card_bytes

    @staticmethod
    def parse(document: Mapping[str, Any]) -> Simulation:
        """Read the child's answer (the form of `document`)."""
        values = dict(document)
        values.pop("fits", None)
        values["timeline"] = tuple((event, parts) for event, parts in values["timeline"])
        values["phases"] = tuple((event, name) for event, name in values["phases"])
        values["per_stage"] = tuple(SimulatedStage(**stage) for stage in values["per_stage"])
        values["assumptions"] = tuple(values["assumptions"])
        return Simulation(**values)

    def document(self) -> dict[str, Any]:
        """Plain JSON form."""
        plain = {name: getattr(self, name) for name in Simulation.__slots__}
        stages = [
            {name: getattr(stage, name) for name in SimulatedStage.__slots__}
            for stage in self.per_stage
        ]
        return plain | {
            "parts": dict(self.parts),
            "timeline": [[event, dict(parts)] for event, parts in self.timeline],
            "phases": [list(mark) for mark in self.phases],
            "per_stage": [stage | {"parts": dict(stage["parts"])} for stage in stages],
            "assumptions": list(self.assumptions),
            "versions": dict(self.versions),
            "fits": self.fits,
        }

    def __str__(self) -> str:
        rows = [*self.parts.items(), ("peak allocated", self.allocated_bytes)]
        rows += [("reserved", self.reserved_bytes)]
        rows += [("reserved, expandable segments", self.reserved_expandable_bytes)]
        rows += [("smallest card, context left out", self.smallest_card_bytes)]
        lines = [f"{name:<34}{format_bytes(size):>12}" for name, size in rows]
        return "\n".join(
            [f"Simulated in {format_seconds(self.seconds)}; peak in {self.peak}", *lines]
        )

    __repr__ = __str__
