"""One piece of advice: a verdict with its reason, its condition, its evidence and its numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Number = int | float | str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """What a rule says about one job; each rule is a function that returns one."""

    rule: str
    """Short name of the rule ("nvlink-or-pcie")."""
    holds: bool | None
    """Whether the job is fine as it is by this rule; None = the rule gives figures alone."""
    verdict: str
    """The answer, one sentence."""
    reason: str
    """Why, with the numbers filled in."""
    condition: str
    """When the rule holds, and what would turn the answer."""
    evidence: str
    """The formula or the estimate that the numbers come from."""
    numbers: Mapping[str, Number]
    """What was used and what came out, units in the names; None = unknown."""
    source: str
    """Where the rule or its constants come from."""
    corrects: str | None = None
    """What many articles say instead, which the rule corrects; None where they are right."""
    next: str = ""
    """What to do, with the command or option that does it; "" = nothing."""
    steps: tuple[str, ...] = field(default=())
    """Ways to do it, in order; empty where the verdict says it all."""

    def __str__(self) -> str:
        return "\n".join([self.verdict, self.reason, *(f"  {step}" for step in self.steps)])

    def document(self) -> dict[str, Any]:
        """Plain JSON form."""
        return {
            "rule": self.rule,
            "holds": self.holds,
            "verdict": self.verdict,
            "reason": self.reason,
            "next": self.next,
            "steps": list(self.steps),
            "condition": self.condition,
            "evidence": self.evidence,
            "numbers": dict(self.numbers),
            "source": self.source,
            "corrects": self.corrects,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What stays the same in every piece of advice of one rule."""

    name: str
    """Short name."""
    evidence: str
    """As in `Advice`."""
    source: str
    """As in `Advice`."""
    corrects: str | None = None
    """As in `Advice`."""

    def advice(
        self,
        *,
        verdict: str,
        holds: bool | None,
        next: str = "",  # noqa: A002  (the key of the JSON form)
        reason: str,
        condition: str,
        numbers: Mapping[str, Number],
        steps: tuple[str, ...] = (),
        also: str = "",
    ) -> Advice:
        """The rule's advice on one job; `also` is a source that only this job has."""
        return Advice(
            rule=self.name,
            holds=holds,
            verdict=verdict,
            next=next,
            reason=reason,
            condition=condition,
            evidence=self.evidence,
            numbers=numbers,
            source=f"{self.source}; {also}" if also else self.source,
            corrects=self.corrects,
            steps=steps,
        )
