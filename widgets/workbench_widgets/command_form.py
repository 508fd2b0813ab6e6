"""The controls of a face that asks what a command does: those of a job, and the command's own."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import workbench as wb
from workbench.describe.checks import require_choice
from workbench.describe.option import DeclaredField
from workbench_widgets.controls import control_value, option_value
from workbench_widgets.job_form import JOB, JobForm

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class CommandForm(JobForm):
    """Abstract: a subclass names the command's options, and asks its question."""

    OWN: ClassVar[Mapping[str, DeclaredField]]
    """The command's own options: controls beside the job's."""

    def plain(self, name: str, value: Any) -> Any:
        """A control's value as the command has it; lengths and prices stay text."""
        if name not in self.OWN:
            return super(CommandForm, self).plain(name, value)
        field = self.OWN[name]
        if field.plain_type is str and not field.option.split and value is not None:
            is_count = isinstance(value, float) and value.is_integer()
            value = f"{value:.0f}" if is_count else str(value).strip()  # 1e9 is no 1000000000.0
        return option_value(field, value)

    def document(self) -> dict[str, Any]:
        """Plain values for the front end."""
        own = {name: control_value(field, self[name]) for name, field in self.OWN.items()}
        return {**super(CommandForm, self).document(), **own}

    def own_values(self) -> dict[str, Any]:
        """The command's own options, each as its field holds it.

        Raises:
            UsageError: one that needs a value is empty, or it is not allowed.
        """
        hidden = self.hidden()
        empty = [name for name, field in self.OWN.items() if field.default is not None]
        empty = [name for name in empty if self[name] is None]
        for name, field in self.OWN.items():
            if name in empty and name not in hidden:
                kind = "a whole number" if field.plain_type is int else "a number, 0 for none"
                raise wb.UsageError(f"{name} is empty. Enter {kind}.")
            if field.option.choices:
                choices = tuple(map(str, field.option.choices))
                require_choice(name, control_value(field, self[name]), choices)
        return {
            name: field.default if name in empty else self[name] for name, field in self.OWN.items()
        }

    def ask(
        self,
        command: Callable[[Any], _Answer],
        kind: type,
        job: Mapping[str, Any],
        own: Mapping[str, Any],
    ) -> _Answer:
        """What the command answers on options of that kind; its flags are controls here.

        Raises:
            UsageError: the controls say something that cannot be.
        """
        try:
            return command(kind(job={"model": self["model"], **job}, **own))
        except wb.UnknownNameError:
            raise
        except wb.UsageError as error:
            raise wb.UsageError(in_controls(str(error))) from error


def first_values(
    own: Mapping[str, DeclaredField], job: Collection[str] = tuple(JOB)
) -> dict[str, Any]:
    """The first value of each control: of the job's options and of the command's own."""
    first = {name: JOB[name] for name in job} | {name: field.default for name, field in own.items()}
    return first | {"tokens": "20B"}


def in_controls(text: str) -> str:
    """What the command line calls an option is a control here.

    >>> in_controls("Give --offer or --usd-per-hour, not both.")
    'Give offer or usd per hour, not both.'
    """
    text = text.replace("give --usd-per-hour X", "enter your price of a node")
    return re.sub(r"--([a-z][a-z-]*)", lambda flag: flag[1].replace("-", " "), text)
