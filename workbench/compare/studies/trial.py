"""One trial of a study: what it starts, and what its run measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from workbench.compare.studies.step_split import StepSplit


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One run that a study wants to see: what it has beside what all of them share."""

    label: str
    """What tells it from the others, for people: "weak 2", "micro-batch 16"."""
    processes: int
    """Ranks."""
    arguments: tuple[str, ...] = ()
    """Of the script or recipe: all of them."""
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Options of the strategy that the others do not have, such as comm_hook."""
    steps: int | None = None
    """Stop after so many steps; None = the run ends by itself."""
    value: float | str | None = None
    """Of what the study varies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialResult:
    """What a trial has shown. A trial that failed is a result too."""

    label: str
    """The trial's."""
    key: str
    """The trial's; a study that continues does not repeat it."""
    processes: int
    """Ranks."""
    value: float | str | None
    """Of what the study varies."""
    run: str | None
    """Id of the run in the store; None = it was refused before it started."""
    outcome: str
    """good, memory (out of it, or over the limit), failed, refused (cannot run here)."""
    problem: str | None
    """Why it is not good, in one sentence."""
    splits: tuple[StepSplit, ...] = ()
    """The steady steps, in order; empty where no step was measured."""
    tokens_per_step: int | None = None
    """Over all ranks; None when unknown."""
    peak_memory_bytes: int | None = None
    """Of the fullest rank."""
    loss: float | None = None
    """Mean of the last fifth of the steps: what is compared at the same number of steps."""
    sent_bytes: int | None = None
    """Gradient bytes one rank sends per step; None where the script does not say."""
    made_of: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Machine and files of the script, see `provenance.differences`; empty = not known."""

    @property
    def good(self) -> bool:
        """Whether it measured what it was to measure."""
        return self.outcome == "good" and bool(self.splits)

    @property
    def step_seconds(self) -> float | None:
        """Median over the steady steps."""
        ordered = sorted(split.step for split in self.splits)
        return ordered[len(ordered) // 2] if ordered else None

    @property
    def tokens_per_second(self) -> float | None:
        """Of all ranks together."""
        step = self.step_seconds
        return self.tokens_per_step / step if step and self.tokens_per_step else None

    def document(self) -> dict[str, Any]:
        """Plain JSON form; `read` takes it back."""
        return {
            **asdict(self),
            "splits": [split.document() for split in self.splits],
            "step_seconds": self.step_seconds,
            "tokens_per_second": self.tokens_per_second,
        }

    @classmethod
    def read(cls, document: object) -> TrialResult | None:
        """The result that `document` holds; None where it is damaged: then it is run again."""
        if not isinstance(document, dict):
            return None
        try:
            known: dict[str, Any] = {"made_of": {}, **document}  # an older study's do not say it
            values = {name: known[name] for name in cls.__slots__}
            values["made_of"] = dict(values["made_of"])
            splits = tuple(StepSplit.read(split) for split in values.pop("splits"))
            return cls(**values, splits=splits)
        except (KeyError, TypeError, ValueError):
            return None
