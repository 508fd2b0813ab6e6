"""What the planner's controls say: what is trained, how long, and the limits of a plan."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import workbench as wb
from workbench.cli.quantities import read_count
from workbench.describe.checks import require_positive
from workbench.planning import Limits, Plan
from workbench_widgets.memory.choice import MemoryChoice, gpu_name
from workbench_widgets.options import refuse_unknown

FACE = "Planner"
WORK = (
    *("model", "seq_len", "precision", "optimizer", "lora_rank", "lora_targets", "quantization"),
    *("attention", "loss", "kernels"),
)
"""The memory calculator's controls that a plan does not decide itself."""
MOST_GPUS = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What a search depends on; budget and deadline only filter what it finds."""

    workload: wb.Workload
    """What is trained."""
    tokens: int
    """How long."""
    global_batch: int | None
    """Sequences per optimizer step; None = about 0.5 M tokens."""
    limits: Limits
    """Providers, accelerators, GPUs and spot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerChoice:
    """One setting of all controls. Values are checked when the engine's objects are built."""

    job: MemoryChoice = field(default_factory=MemoryChoice)
    """Model, sequence, precision and optimizer; the plan decides the rest."""
    tokens: str = "20B"
    """Length of the run: 300B, 1.5T, 2e9."""
    global_batch: int = 0
    """Sequences per optimizer step; 0 = about 0.5 M tokens."""
    budget_usd: float | None = None
    """Most dollars of the finished run; None = no limit."""
    deadline_hours: float | None = None
    """Most hours of the finished run; None = no limit."""
    max_gpus: int = MOST_GPUS
    """Most GPUs."""
    gpu: tuple[str, ...] = ()
    """Only these accelerators; empty = all."""
    providers: tuple[str, ...] = ()
    """Only these; empty = all."""
    spot: bool = False
    """Interruptible machines may be used too."""

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> PlannerChoice:
        """Build from the constructor's keyword arguments.

        Raises:
            TypeError: an unknown option.
        """
        unknown = {name: value for name, value in options.items() if name not in FIELDS}
        refuse_unknown(FACE, unknown, FIELDS)
        of_job = {name: value for name, value in options.items() if name in WORK}
        own = {name: value for name, value in options.items() if name in OWN}
        return cls(job=MemoryChoice.from_options(of_job), **_plain(own))

    def changed(self, changes: Mapping[str, Any]) -> PlannerChoice:
        """The choice after somebody has moved some controls; unknown names are left out."""
        of_job = {name: value for name, value in changes.items() if name in WORK}
        own = _plain({name: value for name, value in changes.items() if name in OWN})
        return dataclasses.replace(self, job=self.job.changed(of_job), **own)

    def document(self) -> dict[str, Any]:
        """Plain values for the front end."""
        job = self.job.document()
        own = {name: getattr(self, name) for name in OWN}
        lists = {"gpu": list(self.gpu), "providers": list(self.providers)}
        return {name: job[name] for name in WORK} | own | lists

    def hidden(self) -> list[str]:
        """Controls that have no effect as the others stand."""
        return [] if self.job.lora_rank else ["lora_targets", "quantization"]

    def question(self) -> Question:
        """What to search.

        Raises:
            UsageError: the controls say something that cannot be.
        """
        if self.max_gpus is None or self.global_batch is None:
            raise wb.UsageError("GPUs and global batch must be whole numbers.")
        if self.global_batch:
            require_positive("global_batch", self.global_batch)
        limits = Limits(
            providers=self.providers, gpus=self.gpu, max_gpus=self.max_gpus, spot=bool(self.spot)
        )
        return Question(
            workload=self.job.workload(),
            tokens=read_count(self.tokens),
            global_batch=self.global_batch or None,
            limits=limits,
        )

    def limits(self) -> Limits:
        """All limits, budget and deadline included.

        Raises:
            UsageError: a limit that is not above 0.
        """
        return dataclasses.replace(
            self.question().limits,
            budget_usd=self.budget_usd,
            deadline_hours=self.deadline_hours,
        )

    def reason_against(self, plan: Plan) -> str:
        """The first limit that a known plan breaks; empty = it keeps them all."""
        budget, deadline = self.budget_usd, self.deadline_hours
        broken = {
            "other GPU": self.gpu and plan.gpu not in self.gpu,
            "other provider": self.providers and plan.provider not in self.providers,
            "spot not allowed": plan.spot and not self.spot,
            "too many GPUs": plan.gpus > self.max_gpus,
            "over budget": budget is not None and (plan.usd is None or plan.usd > budget),
            "past the deadline": deadline is not None and plan.hours > deadline,
        }
        return next((reason for reason, is_broken in broken.items() if is_broken), "")


OWN = tuple(one.name for one in dataclasses.fields(PlannerChoice) if one.name != "job")
FIELDS = (*WORK, *OWN)


def _plain(given: dict[str, Any]) -> dict[str, Any]:
    """Names as tuples of short names, tokens as text, whatever was typed or given."""
    made = dict(given)
    if "tokens" in made:
        made["tokens"] = str(made["tokens"]).strip()
    for name, short in (("gpu", gpu_name), ("providers", str.lower)):
        if name in made:
            value = made[name]
            several = [value] if isinstance(value, str) else list(value or ())
            made[name] = tuple(dict.fromkeys(short(str(one)) for one in several))
    return made
