"""Whether the ranks exchange anything at all: a process group is formed, but nobody uses it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field

from workbench.diagnose.evidence import Evidence
from workbench.diagnose.finding import Finding
from workbench.diagnose.traces import counted

_FIRST_LOOK = 20  # steps: by then a wrapped model has told of itself
_BETWEEN = 10  # steps between two looks
_LATEST = 2000  # steps after which nobody need be asked any more


@dataclass(slots=True)
class ApartWatch:
    """Asks the flight recorder twice and compares how many collectives were begun in between.

    Asked only of DDP runs in which no wrapped model was seen: the others have no question.
    """

    asked_at: float | None = None
    asked_step: int = 0
    before: dict[int, int] = field(default_factory=dict[int, int])
    before_step: int = 0
    verdict: str = ""

    def rule(self, evidence: Evidence) -> Iterator[Finding]:
        """Yield once it is sure, and from then on."""
        if self.verdict:
            yield self._finding(evidence)
            return
        if not self._in_question(evidence):
            return
        if self.asked_at is None:
            if not self.before or evidence.steps >= self.before_step + _BETWEEN:
                self._ask(evidence)
            return
        if evidence.facts.time - self.asked_at < 2.0:
            return
        now = {
            rank: count
            for rank in evidence.facts.ranks
            if (count := counted(evidence.paths, rank, self.asked_at - 0.5)) is not None
        }
        self.asked_at = None
        if self.before and now.keys() == self.before.keys():
            if now == self.before:
                self.verdict = f"between steps {self.before_step} and {self.asked_step}"
            else:
                self.before_step = _LATEST  # they do exchange something: never ask again
        elif len(now) == evidence.processes:
            self.before, self.before_step = now, self.asked_step

    def _in_question(self, evidence: Evidence) -> bool:
        starts = list(evidence.starts.values())
        formed = [start.get("group_world_size") == evidence.processes for start in starts]
        return (
            evidence.processes > 1
            and evidence.facts.phase == "running"
            and evidence.strategy("name") == "ddp"
            and _FIRST_LOOK <= evidence.steps_seen < _LATEST
            and self.before_step < _LATEST
            and len(formed) == evidence.processes
            and all(formed)
            and not any("unused_parameters" in start for start in starts)
        )

    def _ask(self, evidence: Evidence) -> None:
        self.asked_at, self.asked_step = evidence.facts.time, evidence.steps
        with contextlib.suppress(OSError):
            (evidence.paths.control / "dump").touch()

    def _finding(self, evidence: Evidence) -> Finding:
        levels = dict((evidence.rows[-1].losses if evidence.rows else {}).items())
        told = ", ".join(f"rank {rank} {loss:.4g}" for rank, loss in sorted(levels.items())[:8])
        return Finding(
            kind="ranks-diverge",
            step=self.before_step,
            severity="error",
            confidence=0.95,
            evidence=f"No rank began a collective {self.verdict}; the losses now: {told}.",
            cause="Each rank trains a model of its own: a process group exists, but the model is "
            "not wrapped in DistributedDataParallel, so nobody averages the gradients.",
            next="Wrap the model (DistributedDataParallel(model), or accelerator.prepare(model)).",
        )
