"""The cost calculator's controls: a job, and what ``workbench cost`` asks beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from workbench.cli.cost import answer
from workbench.cli.cost_values import CostAnswer, CostOptions
from workbench.describe.option import declared
from workbench_widgets.command_form import CommandForm, first_values
from workbench_widgets.job_form import JOB

OWN = declared(CostOptions)
"""The controls beside the job's."""
FIELDS = (*JOB, *OWN)


@dataclass(frozen=True, slots=True)
class CostChoice(CommandForm):
    """One setting of all controls. Values are checked when the cost is computed."""

    FACE = "CostCalculator"
    OWN = OWN
    FIRST = first_values(OWN)

    def changed(self, changes: Mapping[str, Any]) -> CostChoice:
        """The form after some controls were moved; another machine has other offers."""
        if {"gpu", "gpus", "provider"} & set(changes):
            changes = {"offer": None, **changes}
        return super(CostChoice, self).changed(changes)

    def document(self) -> dict[str, Any]:
        """Plain values for the front end."""
        return {**super(CostChoice, self).document(), "gpu": next(iter(self["gpu"]), "")}

    def hidden(self) -> list[str]:
        """Controls that have no effect as the others stand."""
        away = [*super(CostChoice, self).hidden()]
        stored = self["storage_gb"] or self["keep_checkpoints"]
        return away if stored else [*away, "stopped_days"]

    def costed(self) -> CostAnswer:
        """The bill, what it is of, and why this offer. Raises UsageError: there can be none."""
        own = self.own_values()
        if own["usd_per_hour"] or own["spot_usd_per_hour"] is not None:
            own["offer"] = None
        return self.ask(answer, CostOptions, self.options(), own)
