"""`Verdict`: one thing that is not as it should be, with its evidence and the bound it broke."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

Severity = Literal["error", "warning", "note"]
Part = Literal["data", "weights", "model", "loss", "gradients", "update", "schedule"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What differs, by how much, where first, and why that usually happens."""

    kind: str
    """What it is: ``same-data``, ``gradients-not-exchanged`` …"""
    part: Part
    """The part of a step that it is about."""
    what: str
    """The tensor, batch or setting."""
    evidence: str
    """The figures it rests on, in one sentence."""
    bound: str
    """What would have been right: equal, or within so much rounding."""
    cause: str
    """What usually causes it, in one sentence."""
    next: str
    """What to do now, in one sentence."""
    step: int = 1
    """Optimizer step at which it shows first, from 1; 0 = before the first."""
    rank: int | None = None
    """The rank it is about; None = all."""
    severity: Severity = "error"
    """``error``: another training than was meant; ``warning``: probably; ``note``: good to know."""

    @property
    def place(self) -> tuple[int, int]:
        """Sorts by where in the training it shows first."""
        return self.step, get_args(Part).index(self.part)

    def document(self) -> dict[str, Any]:
        """Plain JSON form."""
        return asdict(self)
