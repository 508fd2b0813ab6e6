"""What a supervisor knows of each machine of its run at one look."""

from __future__ import annotations

from dataclasses import dataclass

SILENT_SECONDS = 90.0  # network storage may show a file up to a minute late
UNREACHABLE_SECONDS = 8.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """One machine of several at one look."""

    node: int
    """Counted from 0."""
    ranks: str
    """Its ranks, for people: ``ranks 2 to 3``."""
    host: str | None = None
    """Its name; None before it has told."""
    address: str | None = None
    """By which it reaches node 0."""
    phase: str | None = None
    """waiting, ready, running, ended, refused or left; None before it has told."""
    exit_code: int | None = None
    """Of its launcher; None while it runs, or when nobody saw it end."""
    silent_seconds: float = 0.0
    """Since it told anything new."""
    unreachable_seconds: float | None = None
    """Since it last reached node 0; None = it does."""
    anew: bool = False
    """Whether its agent was started again in mid-attempt, and no launcher of it is left."""
    mute: bool = False
    """Whether it was told to end the attempt and has not answered."""
    message: str | None = None
    """Its own sentence, where it has one."""

    @property
    def name(self) -> str:
        """For people: ``Node 1 (host, 10.0.0.2)``."""
        known = ", ".join(filter(None, [self.host, self.address]))
        return f"Node {self.node} ({known})" if known else f"Node {self.node}"

    @property
    def lost(self) -> bool:
        """Whether its ranks cannot work with the others."""
        if self.anew or self.mute:
            return True
        if self.phase not in {"running", "ready"}:
            return False
        cut = self.unreachable_seconds is not None
        silent = self.silent_seconds > SILENT_SECONDS
        return silent or (cut and (self.unreachable_seconds or 0.0) > UNREACHABLE_SECONDS)
