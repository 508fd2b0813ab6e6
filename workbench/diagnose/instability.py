"""A loss that does not recover by itself: NaN in every step since, or a spike that stays."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from workbench.diagnose.evidence import Evidence
from workbench.store.findings import Finding

NAN, SPIKE = "nan", "spike"
_NAN_STEPS = 3  # in a row: a loss scaler skips single ones
_SPIKE_STEPS = 30  # after its beginning: most spikes are over by then
_LEVEL = 50  # losses before it that say where the loss was
_RECENT = 10


@dataclass(frozen=True, slots=True)
class Instability:
    """What a run has to go back for."""

    kind: str
    """``nan`` or ``spike``."""
    step: int
    """The first step that shows it."""
    finding: Finding
    """What was found then."""


class InstabilityWatch:
    """Follows the findings of one attempt until one of them has stayed."""

    def __init__(self) -> None:
        self._spike: tuple[Finding, float] | None = None

    def look(self, evidence: Evidence, findings: list[Finding]) -> Instability | None:
        """What has stayed by now; None = nothing. Called once per look."""
        standing = {finding.kind: finding for finding in findings if finding.cleared_at is None}
        first = evidence.first_nonfinite
        nan = standing.get("nan-loss") or standing.get("inf-loss")
        if nan is not None and first is not None and evidence.nonfinite_steps >= _NAN_STEPS:
            return Instability(NAN, first.step, nan)
        return self._stays(evidence, standing.get("loss-spike"))

    def _stays(self, evidence: Evidence, spike: Finding | None) -> Instability | None:
        losses = list(evidence.losses)
        if self._spike is None:
            if spike is None or spike.step is None:
                return None
            since = max(1, evidence.steps - spike.step + 1)
            before = losses[:-since][-_LEVEL:]
            if len(before) < _LEVEL // 2:
                return None
            level = median(before)
            spread = median(abs(value - level) for value in before)
            self._spike = (spike, level + max(0.25 * abs(level), 5 * spread))
        finding, bound = self._spike
        if len(losses) >= _RECENT and median(losses[-_RECENT:]) <= bound:
            # Its first losses are among the latest ones still: it may only have begun.
            if evidence.steps >= (finding.step or 0) + _SPIKE_STEPS:
                self._spike = None
            return None
        if evidence.steps < (finding.step or 0) + _SPIKE_STEPS:
            return None
        return Instability(SPIKE, finding.step or 0, finding)
