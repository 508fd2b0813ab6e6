"""`Change`: one row of the table of switches, and what a job is after it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from workbench.describe import Strategy, Workload
from workbench.describe.job import options
from workbench.describe.option import text_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One decision that differs from the given workload and strategy."""

    name: str
    """What people call it."""
    cost: str
    """One sentence: time, traffic or generality that it costs."""
    in_practice: str
    """What changes in a training script."""
    workload: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Fields of the workload that it sets."""
    kernels: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Fields of the implementation's assumptions that it sets."""
    strategy: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Options of the strategy that it sets."""
    option: str = ""
    """The options of ``workbench memory`` that make it; "" = those of the fields that it sets."""
    changes_result: bool = False
    """Whether training computes something else (not just rounding)."""
    usual: bool = False
    """What people do first for such a job: named before others that save more."""
    on_host: tuple[str, ...] = ()
    """Parts of the estimate that move to host memory."""

    @property
    def options(self) -> str:
        """The options of ``workbench memory`` that make it."""
        if self.option:
            return self.option
        fields = {**self.workload, **self.kernels, **self.strategy}
        flags = {options()[name].flag: value for name, value in fields.items()}
        off = [flag for flag, value in flags.items() if value is None or value is False]
        given = [
            flag if value is True else f"{flag} {text_of(value)}"
            for flag, value in flags.items()
            if flag not in off
        ]
        return " ".join([*given, *without(off)])

    @property
    def code(self) -> str:
        """The same in Python, on `workload` and `strategy`."""
        if self.strategy:
            return f"strategy.with_options({_assigned(self.strategy)})"
        if self.kernels:
            kernels = f"replace(workload.kernels, {_assigned(self.kernels)})"
            return f"replace(workload, kernels={kernels})"
        return f"replace(workload, {_assigned(self.workload)})"

    def applied(self, workload: Workload, strategy: Strategy) -> tuple[Workload, Strategy]:
        """Workload and strategy after it."""
        fields = dict(self.workload)
        if self.kernels:
            fields["kernels"] = replace(workload.kernels, **self.kernels)
        return replace(workload, **fields), strategy.with_options(**self.strategy)


def without(flags: Iterable[str]) -> tuple[str, ...]:
    """What not to type any more."""
    return tuple(f"without {flag}" for flag in flags)


def _assigned(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in values.items())
