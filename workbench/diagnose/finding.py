"""`Finding`: one thing that is wrong with a run, with its numbers, its cause and the next move."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Severity = Literal["error", "warning", "note"]
_ORDER: tuple[Severity, ...] = ("error", "warning", "note")
HANGS = frozenset({"hang", "deadlock", "stopped-rank", "gil-held"})
"""Kinds after which nothing goes on by itself."""
EXIT_HANG = "exit-hang"
"""The training is over, and a process does not end."""
CERTAIN_HANGS = frozenset({"stopped-rank", EXIT_HANG})
"""Standstills that nothing healthy looks like."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Evidence, likely cause and next move. One of a kind per rank stands at a time."""

    kind: str
    """What it is: ``nan-loss``, ``hang``, ``straggler``, ``out-of-memory`` …"""
    evidence: str
    """The numbers it rests on, in one sentence."""
    cause: str
    """The likely cause, in one sentence that names the rank where there is one."""
    next: str
    """What to do now, in one sentence."""
    confidence: float
    """0 to 1: how sure the cause is, given the evidence."""
    severity: Severity = "warning"
    """``error``: the run is lost or worthless as it goes on; ``warning``: it wastes time or money;
    ``note``: worth knowing."""
    rank: int | None = None
    """The rank it is about; None = the run as a whole."""
    step: int | None = None
    """Optimizer step at which it began; None = not tied to one."""
    seen_at: float | None = None
    """Unix seconds at which it was first seen."""
    cleared_at: float | None = None
    """Unix seconds at which it had gone again; None = it stands."""

    @property
    def key(self) -> tuple[str, int | None]:
        """Two findings with the same key are the same one, seen twice."""
        return self.kind, self.rank

    def document(self) -> dict[str, Any]:
        """Plain JSON form."""
        return asdict(self)


def worst_first(findings: list[Finding]) -> list[Finding]:
    """Standing ones before cleared ones, errors first, then by when they were seen."""
    return sorted(
        findings,
        key=lambda one: (
            one.cleared_at is not None,
            _ORDER.index(one.severity),
            one.seen_at or 0.0,
        ),
    )
