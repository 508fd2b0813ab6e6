"""The cost calculator's controls: a job, and what ``workbench cost`` asks beside it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import workbench as wb
from workbench.cli.cost import answer
from workbench.cli.cost_values import Costed, CostOptions
from workbench.describe.checks import require_choice
from workbench.describe.option import declared
from workbench_widgets.controls import control_value, option_value
from workbench_widgets.job_form import JOB, JobForm

OWN = declared(CostOptions)
"""The controls beside the job's."""
FIELDS = (*JOB, *OWN)


@dataclass(frozen=True, slots=True)
class CostChoice(JobForm):
    """One setting of all controls. Values are checked when the cost is computed."""

    FACE = "CostCalculator"
    FIRST = {  # noqa: RUF012 - a class variable of `Form`
        **JOB,
        **{name: one.default for name, one in OWN.items()},
        "tokens": "20B",
    }

    def changed(self, changes: Mapping[str, Any]) -> CostChoice:
        """The form after some controls were moved; another machine has other offers."""
        if {"gpu", "gpus", "provider"} & set(changes):
            changes = {"offer": None, **changes}
        return super(CostChoice, self).changed(changes)

    def plain(self, name: str, value: Any) -> Any:
        """A control's value as the command has it; lengths and prices stay text."""
        if name not in OWN:
            return super(CostChoice, self).plain(name, value)
        if OWN[name].plain_type is str and value is not None:
            value = str(value).strip()
        return option_value(OWN[name], value)

    def document(self) -> dict[str, Any]:
        """Plain values for the front end."""
        own = {name: control_value(one, self[name]) for name, one in OWN.items()}
        return {**super(CostChoice, self).document(), "gpu": next(iter(self["gpu"]), ""), **own}

    def hidden(self) -> list[str]:
        """Controls that have no effect as the others stand."""
        away = [*super(CostChoice, self).hidden()]
        away += [] if self["storage_gb"] else ["stopped_days"]
        return [*away, "provider"] if self["usd_per_hour"] else away

    def costed(self) -> Costed:
        """The bill, what it is of, and why this offer.

        Raises:
            UsageError: the controls say something that cannot be.
        """
        own = {name: self[name] for name in OWN}
        for name, value in own.items():
            if value is None and OWN[name].default is not None:
                raise wb.UsageError(f"{name} is empty. Enter a number, 0 for none.")
            if OWN[name].option.choices:
                choices = tuple(map(str, OWN[name].option.choices))
                require_choice(name, control_value(OWN[name], value), choices)
        if own["usd_per_hour"] or own["spot_usd_per_hour"] is not None:
            own["offer"] = None
        try:
            return answer(CostOptions(job={"model": self["model"], **self.options()}, **own))
        except wb.UnknownNameError:
            raise
        except wb.UsageError as error:
            raise wb.UsageError(in_controls(str(error))) from error


def in_controls(text: str) -> str:
    """What the command line calls an option is a control here.

    >>> in_controls("Give --offer or --usd-per-hour, not both.")
    'Give offer or usd per hour, not both.'
    """
    text = text.replace("give --usd-per-hour X", "enter your price of a node")
    return re.sub(r"--([a-z][a-z-]*)", lambda flag: flag[1].replace("-", " "), text)
