"""What a probe of a script's own training step has measured, as far as estimates need it.

Everything is a line over the batch: what a step holds and does whatever the batch is, and what each
sample adds. Two probes at two batch sizes give both; with one, `batches` has one entry, and all of
it counts as growing with the batch, parameters, gradients and optimizer states left out.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from workbench.describe.hardware import Cluster


def cpu_text(cluster: Cluster) -> str:
    """The CPU of a machine, as `Measured.cpu` has it."""
    return f"{cluster.cpu_name or 'unknown CPU'}, {cluster.cpu_cores or 'unknown'} cores"


@dataclass(frozen=True, slots=True, kw_only=True)
class PerBatch:
    """A quantity of one micro-batch on one rank: `constant + samples x per_sample`."""

    constant: float = 0.0
    """Whatever the batch is."""
    per_sample: float = 0.0
    """Added by each sample."""

    def at(self, samples: float) -> float:
        """The quantity for a micro-batch of so many samples.

        >>> PerBatch(constant=10, per_sample=2).at(4)
        18
        """
        return self.constant + self.per_sample * samples


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """One operator of the measured step at which, for some batch and layout, memory is highest."""

    phase: str
    """forward, backward, step (the optimizer's)."""
    gradients: float
    """Bytes of the parameters' gradients that exist, over those of all."""
    other: PerBatch
    """Bytes of what is no parameter, gradient or optimizer state: activations, inputs, buffers,
    copies of weights."""
    scratch_bytes: float = 0.0
    """Bytes that the optimizer's step has taken for itself, proportional to what it updates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWork:
    """What the operators of a part of the step compute and move."""

    flops: PerBatch
    """Of matrix products, convolutions and attention."""
    moved_bytes: PerBatch
    """Read and written by all other operators."""
    operators: PerBatch
    """Kernels, about: operators that are no views."""


_NO_WORK = StepWork(flops=PerBatch(), moved_bytes=PerBatch(), operators=PerBatch())


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The measured step of a script."""

    source: str
    """Script, device and date, in words."""
    batches: tuple[int, ...]
    """Samples per micro-batch of each probe."""
    precision: str
    """As `Workload.precision`, at which it was measured."""
    optimizer: str
    """As `Workload.optimizer`; see `optimizer_bytes`."""
    optimizer_bytes: float
    """Bytes of state per trained element."""
    trained: int
    """Trained elements."""
    frozen_bytes: int = 0
    """Bytes of parameters that get no gradient."""
    root: int = 0
    """Elements outside the repeated blocks."""
    moments: tuple[Moment, ...] = ()
    """Where memory can be highest, in the order of the step."""
    forward: StepWork = _NO_WORK
    """Work of one micro-batch's forward pass, the loss included."""
    backward: StepWork = _NO_WORK
    """Work of its backward pass."""
    seconds: PerBatch | None = None
    """Of a step by micro-batch, on the device it was measured on; None = not timed."""
    device: str = "cpu"
    """``cpu`` or the GPU's name."""
    cpu: str = ""
    """Name and cores of the CPU that `seconds` are of, as `Cluster` has them; "" = not known."""
    tensor_by_tensor: bool = False
    """The optimizer steps one tensor after the other, as torch does on a CPU by default; a GPU
    works on lists of all of them, and their temporaries are as large as the weights."""
    notes: tuple[str, ...] = field(default=())
    """What could not be measured, and what is assumed in its place."""

    @property
    def compute_bytes(self) -> int:
        """Bytes of an activation as it was measured."""
        return 4 if self.precision == "fp32" else 2

    def flops(self, samples: int) -> float:
        """Of one micro-batch's forward and backward."""
        return self.forward.flops.at(samples) + self.backward.flops.at(samples)
