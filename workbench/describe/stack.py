"""What was measured of a software stack: one run or one stated figure, beside its prediction.

A stack is a trainer at a release on a GPU generation. `store.stack_calibrations` keeps what was
measured, a workload carries what applies to its trainer, `estimate.stack_factor` applies it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import NamedTuple

from workbench.describe.option import Option

ALL, NONE = "all", "none"
CALIBRATION = Option(
    help="Measurement of the trainer that corrects the estimate: a name, all, none.",
    metavar="NAME",
    in_place=True,
)
"""Of everything that estimates; its default is `ALL`."""


class StackFacts(NamedTuple):
    """What two jobs must share for one to say something about the other."""

    trainer: str
    """As ``--trainer`` takes it, without the release."""
    release: str
    """"" = not known."""
    script: str
    """Name of the script or recipe that trains; "" = not known, or the trainer was named."""
    device: str
    """cuda or cpu."""
    arch: str
    """GPU generation, as the catalog has it; "" = a CPU, or not known."""
    precision: str
    """Of the workload."""
    trained: str
    """full, lora or qlora."""
    has_experts: bool
    """Mixture of experts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StackMeasurement:
    """One run or one stated figure, beside what was predicted without any calibration."""

    name: str
    """Run id, or the name that was given: as ``--calibration`` takes it."""
    figures: str
    """What was measured, in words: "step 812 ms, peak 61.2 GiB"."""
    measured_at: float
    """Seconds since 1970; of a stated figure when it was stated."""
    is_run: bool
    """Else someone stated it."""
    facts: tuple[str, str, str, str, str, str, str, bool]
    """`StackFacts`."""
    layout: str
    """Model, strategy, batch and GPUs in words: equal where the same was measured again."""
    gpu: str | None = None
    """Id of the catalog; None = a CPU, or a GPU that it does not have."""
    host_key: str = ""
    """Of the CPU that it ran on, `store.calibrations.host_key`; "" = a GPU."""
    version: str = ""
    """Workbench whose prediction it stands beside."""
    step_ratio: float | None = None
    """Measured over predicted seconds of a step; None = not measured."""
    peak_bytes: float | None = None
    """Measured; None = not measured."""
    predicted_bytes: float | None = None
    """Of the same figure: allocated, reserved or on the card."""
    tensors_bytes: float | None = None
    """What the prediction's tensors take: all that PyTorch allocates."""
    states_bytes: float | None = None
    """What of them is weights, master copy and optimizer states."""

    @property
    def date(self) -> str:
        """Day in local time."""
        return time.strftime("%Y-%m-%d", time.localtime(self.measured_at))

    @property
    def stack(self) -> StackFacts:
        """The facts by name."""
        return StackFacts(*self.facts)

    @property
    def memory_ratio(self) -> float | None:
        """Measured over predicted peak; None = not measured."""
        if self.peak_bytes is None or not self.predicted_bytes:
            return None
        return self.peak_bytes / self.predicted_bytes

    def __str__(self) -> str:
        stack = self.stack
        trainer = f"{stack.trainer}@{stack.release}" if stack.release else stack.trainer
        where = self.gpu or stack.arch or stack.device
        ratios = {"step": self.step_ratio, "memory": self.memory_ratio}
        words = [
            f"{quantity} {ratio:.2f} x the prediction"
            for quantity, ratio in ratios.items()
            if ratio is not None
        ]
        return (
            f"{self.name} ({self.date}): {trainer} on {where}, {stack.precision}, "
            f"{stack.trained}: {self.figures}; {', '.join(words)}"
        )

    @property
    def source(self) -> str:
        """Where it comes from, in a few words."""
        return f"{'run' if self.is_run else 'stated figures'} {self.name}, {self.date}"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StackCalibration:
    """What was measured of a job's stack; compared by identity, since a search asks it often."""

    trainer: str
    """Of the job, without the release."""
    release: str = ""
    """Of the job; "" = not known."""
    script: str = ""
    """Of a launch whose trainer is not named; "" = not known."""
    measurements: tuple[StackMeasurement, ...] = ()
    """Oldest first; those of other stacks are named and do not count."""
    is_named: bool = False
    """Whether someone chose them: then it is always said why one does not count."""
