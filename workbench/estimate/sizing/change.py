"""`Change`: one row of the table of switches, and what a job is after it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from workbench.describe.job import Job, options
from workbench.describe.needed import is_met, of_job, unmet
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
    given: Mapping[str, Any] | None = None
    """Options of a job that make it, None = left out; without them the fields that it sets."""
    changes_result: bool = False
    """Whether training computes something else (not just rounding)."""
    usual: bool = False
    """What people do first for such a job: named before others that save more."""
    on_host: tuple[str, ...] = ()
    """Parts of the estimate that move to host memory."""

    def values(self, job: Job) -> Mapping[str, Any]:
        """The options of a job that make it, by name; None = left out."""
        values = self.given
        if values is None:
            values = {**self.workload, **self.kernels, **self.strategy}
        values = {**values, **dict.fromkeys(self._idle(job, values))}
        if not _decides(job):
            return values
        # What the trainer assumed was not given: it cannot be left out.
        return {
            name: value
            for name, value in values.items()
            if value is not None or job.given.get(name) is not None
        }

    def _idle(self, job: Job, values: Mapping[str, Any]) -> tuple[str, ...]:
        """Options that were given to the job and change nothing after it."""
        before = of_job(job.workload.model, job.workload, job.strategy)
        after = {**before, **self.workload, **self.kernels, **self.strategy}
        option_names = [
            name for name, value in job.given.items() if value is not None and name in before
        ]
        return unmet(
            [name for name in option_names if name not in values and is_met(name, before)], after
        )

    def options(self, job: Job) -> str:
        """The options of ``workbench memory`` that make it."""
        on: list[str] = []
        left_out: list[str] = []
        for name, value in self.values(job).items():
            field = options()[name]
            if value is False and _decides(job):  # without it, the trainer would decide
                on.append(field.off_flag)
            elif value is None or value is False:
                left_out.append(f"without {field.flag}")
            else:
                on.append(field.flag if value is True else f"{field.flag} {text_of(value)}")
        return " ".join([*on, *left_out])

    def code(self, job: Job) -> str:
        """The same in Python, on `job`, or on its `workload` or `strategy`."""
        if _decides(job):
            return f"job.changed({_assigned(self.values(job))})"
        if self.strategy:
            return f"strategy.with_options({_assigned(self.strategy)})"
        if self.kernels:
            kernels = f"replace(workload.kernels, {_assigned(self.kernels)})"
            return f"replace(workload, kernels={kernels})"
        return f"replace(workload, {_assigned(self.workload)})"

    def applied(self, job: Job) -> Job:
        """The job after it; a trainer that someone named decides again what is left open.

        Raises:
            UsageError: the job's other options do not go with it.
        """
        if _decides(job):
            return job.changed(**self.values(job))
        fields = dict(self.workload)
        if self.kernels:
            fields["kernels"] = replace(job.workload.kernels, **self.kernels)
        return replace(
            job,
            workload=replace(job.workload, **fields),
            strategy=job.strategy.with_options(**self.strategy),
        )


def _decides(job: Job) -> bool:
    """Whether the job's trainer decides what its options leave open."""
    return job.has_named_trainer and bool(job.given)


def _assigned(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in values.items())
