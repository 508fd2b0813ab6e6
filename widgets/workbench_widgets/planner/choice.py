"""The planner's controls: what a plan does not decide of a job, and ``workbench plan``'s own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from workbench.cli.plan import question
from workbench.cli.plan_values import PlanOptions, Question
from workbench.describe.job import options
from workbench.describe.option import declared
from workbench.describe.prices import short_provider
from workbench.planning import Limits, Plan
from workbench_widgets.command_form import CommandForm, first_values
from workbench_widgets.job_form import JOB, gpu_name

OWN = {name: field for name, field in declared(PlanOptions).items() if name != "rejections"}
"""The command's own controls."""
WORK = tuple(name for name in JOB if name in {*options()} - {*PlanOptions.HIDDEN, *OWN})
"""The controls of a job that a plan does not decide itself."""
FIELDS = (*WORK, *OWN)


@dataclass(frozen=True, slots=True)
class PlannerChoice(CommandForm):
    """One setting of all controls. Values are checked when the engine's objects are built."""

    FACE = "Planner"
    OWN = OWN
    FIRST = first_values(OWN, WORK)

    def plain(self, name: str, value: Any) -> Any:
        """A control's value as the command has it; names are the catalog's short ones."""
        if name in {"gpu", "providers"}:
            several = value if isinstance(value, list | tuple) else [value]
            short = gpu_name if name == "gpu" else short_provider
            return tuple(dict.fromkeys(short(str(name)) for name in several if name))
        return super(PlannerChoice, self).plain(name, value)

    @property
    def is_own(self) -> bool:
        """Whether the plan is for machines one has: this host, or those described."""
        return bool(self["here"]) or self["gpus"] is not None

    def hidden(self) -> list[str]:
        """Controls that have no effect as the others stand."""
        without = [] if self["lora_rank"] else ["lora_targets", "adapter_bytes"]
        return [*without, *self._of_other_machines()]

    def _of_other_machines(self) -> tuple[str, ...]:
        """Controls of machines that are not planned for."""
        if self["here"]:
            return (*PlanOptions.MARKET, *PlanOptions.BETWEEN, "gpus", "nodes", "gpu")
        if self.is_own:
            return PlanOptions.MARKET
        return (*PlanOptions.BETWEEN, "nodes", "usd_per_hour")

    def limited_question(self) -> Question:
        """What to search, budget and deadline included. Raises UsageError: it cannot be."""
        self.check_filled()
        left_out = self._of_other_machines()
        job = {name: self.moved[name] for name in WORK if name in self.moved}
        job = {name: value for name, value in job.items() if name not in self.hidden()}
        own = self.own_values()
        own |= {name: OWN[name].default for name in left_out if name in OWN}
        return self.ask(question, PlanOptions, job, own)

    def question(self) -> Question:
        """What a search depends on; budget and deadline only filter. Raises UsageError."""
        question = self.limited_question()
        return replace(
            question, limits=replace(question.limits, budget_usd=None, deadline_hours=None)
        )

    def limits(self) -> Limits:
        """All limits, budget and deadline included. Raises UsageError: one is not above 0."""
        return self.limited_question().limits

    def reason_against(self, plan: Plan) -> str:
        """The first limit that a known plan breaks; empty = it keeps them all."""
        if self.is_own:
            return ""
        budget, deadline = self["budget_usd"], self["deadline_hours"]
        broken = {
            "other GPU": self["gpu"] and plan.gpu not in self["gpu"],
            "other provider": self["providers"] and plan.provider not in self["providers"],
            "spot not allowed": plan.spot and not self["spot"],
            "too many GPUs": plan.gpus > self["max_gpus"],
            "over budget": budget is not None and (plan.usd is None or plan.usd > budget),
            "past the deadline": deadline is not None and plan.hours > deadline,
        }
        return next((reason for reason, is_broken in broken.items() if is_broken), "")
