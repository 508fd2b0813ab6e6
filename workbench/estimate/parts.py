"""An estimate: named parts that add up to a total, with its assumptions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from workbench.units import format_bytes

OUTSIDE_ALLOCATOR = frozenset({"CUDA context", "NCCL"})
"""Parts that are on the card but not PyTorch's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Named parts in bytes, in the order they are shown."""

    parts: Mapping[str, int]
    """Part name -> bytes."""
    assumptions: tuple[str, ...]
    """What was assumed, and where the number leaves its tested range."""

    @property
    def total_bytes(self) -> int:
        """The parts' sum."""
        return sum(self.parts.values())

    @property
    def allocated_bytes(self) -> int:
        """The part that PyTorch's allocator hands out: what max_memory_allocated() measures."""
        return sum(size for name, size in self.parts.items() if name not in OUTSIDE_ALLOCATOR)

    def document(self) -> dict[str, Any]:
        """Plain JSON form, as kept in run.json."""
        return {
            "parts": dict(self.parts),
            "total_bytes": self.total_bytes,
            "allocated_bytes": self.allocated_bytes,
            "assumptions": list(self.assumptions),
        }

    def __str__(self) -> str:
        lines = [f"{name:<22}{format_bytes(size):>12}" for name, size in self.parts.items()]
        return "\n".join([*lines, f"{'total':<22}{format_bytes(self.total_bytes):>12}"])
