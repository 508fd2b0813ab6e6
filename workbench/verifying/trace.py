"""The traces of one run, as its ranks wrote them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, cast

from workbench.errors import StoreError
from workbench.store.files import MAX_TRACE_BYTES, read_json_or_why

FOLDER = "verify"
EPSILON = {"float64": 2.2e-16, "float32": 1.2e-7, "float16": 9.8e-4, "bfloat16": 7.8e-3}
"""Distance from 1 to the next larger number, by data type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sketch:
    """A tensor in a few numbers; see `launching/capture/verify/sketch.py`."""

    hash: int
    """Of its bytes: equal hashes are equal tensors."""
    norm: float | None
    """Euclidean norm; None for a sum of several backward passes."""
    spread: float = 0.0
    """Standard deviation of the elements; 0 = all are the same."""
    shape: tuple[int, ...] = ()
    """Of the whole tensor."""
    dtype: str = "float32"
    """Data type."""
    projections: tuple[float, ...] = ()
    """Sums with signs; those of shards add up, those of differences tell their norm."""
    offset: tuple[int, ...] | None = None
    """Where this rank's piece begins; None = the rank holds the whole."""
    local: tuple[int, ...] | None = None
    """Shape of this rank's piece; None = the whole."""

    @property
    def piece(self) -> tuple[Any, ...]:
        """Equal for copies of one piece."""
        return self.offset, self.local

    @property
    def size(self) -> float:
        """The norm, or what the projections say of it."""
        return self.norm if self.norm is not None else root_mean_square(self.projections)


def root_mean_square(values: Sequence[float]) -> float:
    """Of projections: about the norm of what was projected."""
    return math.sqrt(sum(value * value for value in values) / max(1, len(values)))


def distance(sketch: Sketch, other: Sketch) -> float:
    """About the norm of the difference of two tensors of one shape."""
    if sketch.hash == other.hash:
        return 0.0
    pairs = zip(sketch.projections, other.projections, strict=True)
    return root_mean_square([a - b for a, b in pairs])


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The samples of one forward pass of the training."""

    samples: tuple[int, ...] = ()
    """A hash of each sample's content, as the model was given it."""
    indices: tuple[int, ...] | None = None
    """Their places in the data set; None where no sampler told them."""
    shapes: tuple[Any, ...] = ()
    """Shapes of the tensors."""
    drawn: bool = False
    """Whether a tensor of it came from a loader as it is."""
    model: int = 0
    """Tells the modules apart that the script calls."""
    fresh: bool = True
    """Whether its inputs are data, not what another pass of the step has made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One optimizer step of one rank."""

    step: int
    """Counted from 1."""
    losses: tuple[float, ...] = ()
    """As each backward pass was called with."""
    factors: tuple[Sequence[float] | None, ...] = ()
    """By how much each loss is more than a mean, and of how many elements the script added up."""
    batches: tuple[Batch, ...] = ()
    """In the order of the forward passes."""
    gradients: Mapping[str, Sketch | None] = field(default_factory=dict[str, "Sketch | None"])
    """As they were applied; None = this parameter had none."""
    local: Mapping[str, Sketch] = field(default_factory=dict[str, Sketch])
    """As this rank computed them, before any exchange."""
    weights: Mapping[str, Sketch] = field(default_factory=dict[str, Sketch])
    """After the step."""
    applied: tuple[str, ...] = ()
    """Parameters whose optimizer stepped, at a learning rate above 0."""
    passes: tuple[int, ...] = ()
    """Backward passes of the step that each optimizer's step came after."""
    moved: Mapping[str, int] = field(default_factory=dict[str, int])
    """Hashes, as its first backward pass began, of weights that the step before left otherwise."""
    buffers: Mapping[str, int] = field(default_factory=dict[str, int])
    """Hashes of running statistics after the step."""
    random: Mapping[str, str] = field(default_factory=dict[str, str])
    """Hashes of the generators' states after the step."""
    lr: float | None = None
    """Learning rate of the first parameter group."""
    modes: tuple[bool, ...] = ()
    """Whether the model was in training mode, in each forward pass."""
    targets: tuple[Mapping[str, Any], ...] = ()
    """Of each cross entropy: reduction, all targets, and those that count."""
    clips: tuple[Mapping[str, Any], ...] = ()
    """Of each clipping: kind, norm and number of elements before it, and a scaler's factor."""
    schedules: int = 0
    """Most calls of one scheduler since the step before."""
    carried: bool = False
    """Whether the gradients of the step before were still there at the first backward pass."""
    older: tuple[str, ...] = ()
    """Parameters that had a gradient when the first backward pass began: of steps before."""
    noise: bool = False
    """Whether random numbers were drawn between a forward and its backward pass."""
    unsynced: int = 0
    """Backward passes in which DDP was told not to exchange."""
    called: tuple[str, ...] = ()
    """Classes of the modules that the script called."""

    @property
    def loss(self) -> float | None:
        """What this rank optimised in the step."""
        return sum(self.losses) if self.losses else None

    @property
    def samples(self) -> tuple[int, ...]:
        """Contents of all its samples."""
        return tuple(mark for batch in self.batches for mark in batch.samples)

    @property
    def consumed(self) -> int:
        """Samples that the step used, each once: a GAN calls its models several times on them.

        Those that came from a loader, where some did; else what one model was given as data.
        """
        drawn = {batch.indices or () for batch in self.batches if batch.drawn and batch.fresh}
        if drawn:
            return sum(map(len, drawn))
        counts: dict[int, int] = {}
        for batch in self.batches:
            counts[batch.model] = counts.get(batch.model, 0) + len(batch.samples) * batch.fresh
        return max(counts.values(), default=0)

    @property
    def indices(self) -> tuple[int, ...] | None:
        """Places of all its samples; None where one is unknown."""
        if not self.batches or any(batch.indices is None for batch in self.batches):
            return None
        return tuple(place for batch in self.batches for place in batch.indices or ())


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTrace:
    """What one rank wrote."""

    rank: int
    """In the group of all ranks."""
    world_size: int = 1
    """As the script's process group says."""
    accelerate: bool = False
    """Whether the script uses an Accelerator."""
    weights: Mapping[str, Sketch] = field(default_factory=dict[str, Sketch])
    """Before the first step, as they were wrapped."""
    tied: tuple[Any, ...] = ()
    """Names that stand for one parameter, together."""
    drawn: tuple[str, ...] = ()
    """Weights that are as this process drew them: none was loaded. A constant is in no list."""
    wrappers: tuple[str, ...] = ()
    """Of DDP, FSDP, DeepSpeed: what the models are wrapped in."""
    own_buffers: bool = False
    """Whether DDP is told not to broadcast rank 0's buffers."""
    embeddings: tuple[str, ...] = ()
    """Weights of embedding layers."""
    comm_hook: bool = False
    """Whether DDP exchanges compressed gradients."""
    trainable: tuple[str, ...] = ()
    """Parameters that require a gradient."""
    optimized: tuple[str, ...] = ()
    """Parameters of the models that an optimizer holds which stepped."""
    waiting: tuple[str, ...] = ()
    """Those that an optimizer holds which made no step."""
    outside: int = 0
    """Parameters of optimizers that no called model has."""
    optimizer: str | None = None
    """Class of the first optimizer."""
    batch_norm: int = 0
    """BatchNorm layers."""
    sync_batch_norm: int = 0
    """Of them, those that average over ranks."""
    order: tuple[str, ...] = ()
    """Last parameter of each layer, in the order in which they ran."""
    switches: tuple[Mapping[str, Any], ...] = ()
    """Modules that say that they are frozen, and are not."""
    loaders: tuple[Mapping[str, Any], ...] = ()
    """Each DataLoader that was iterated."""
    fetches: tuple[Mapping[str, Any], ...] = ()
    """Each batch that was taken from them."""
    evaluated: bool = False
    """Whether the model was called without gradients."""
    dropouts: int = 0
    """Calls of dropout in the training; all are switched off."""
    eval_dropouts: Mapping[str, int] = field(default_factory=dict[str, int])
    """Calls of dropout within a model in evaluation mode, by class."""
    autocast: str | None = None
    """Data type of autocast, where it was on."""
    products: Mapping[str, int] = field(default_factory=dict[str, int])
    """Weights used in matrix products, by the data type of the result."""
    steps: tuple[Step, ...] = ()
    """In order."""
    error: str | None = None
    """Why a step could not be traced."""

    @property
    def feed(self) -> Mapping[str, Any] | None:
        """The loader that trains."""
        return next((loader for loader in self.loaders if loader.get("trains")), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """One run of the script: all ranks."""

    label: str
    """As people read it: ``2 ranks, ddp``."""
    ranks: tuple[RankTrace, ...]
    """By rank."""
    split: int = 1
    """Ranks that share one copy of the model by tensor, pipeline or context parallelism."""

    @property
    def steps(self) -> int:
        """Steps that every rank has made."""
        return min((len(rank.steps) for rank in self.ranks), default=0)

    def at(self, number: int) -> list[Step]:
        """Step `number`, from 0, of every rank."""
        return [rank.steps[number] for rank in self.ranks]

    @property
    def epsilon(self) -> float:
        """Of the coarsest data type that gradients pass through."""
        kinds = {weight.dtype for rank in self.ranks for weight in rank.weights.values()}
        kinds |= {rank.autocast for rank in self.ranks if rank.autocast}
        return max((EPSILON.get(kind, 0.0) for kind in kinds), default=EPSILON["float32"])


def read_trace(directory: Path, label: str, split: int = 1) -> Trace:
    """What the ranks of a run have written, by rank.

    Raises:
        StoreError: a trace is too large.
    """
    ranks = list[RankTrace]()
    for path in sorted((directory / FOLDER).glob("rank-*.json")):
        document, why = read_json_or_why(path, MAX_TRACE_BYTES)
        if why is not None and why.startswith("larger"):
            raise StoreError(f"{path} cannot be read: it is {why}. Give fewer --steps.")
        if document is not None:
            ranks.append(_rank(document))
    ranks.sort(key=lambda trace: trace.rank)
    return Trace(label=label, ranks=tuple(ranks), split=split)


def _rank(document: Mapping[str, Any]) -> RankTrace:
    values = _fields_of(RankTrace, document)
    values["steps"] = tuple(_step(step) for step in document.get("steps", ()))
    values["weights"] = _sketches(document.get("weights"))
    return RankTrace(**values)


def _step(document: Mapping[str, Any]) -> Step:
    values = _fields_of(Step, document)
    values["batches"] = tuple(
        Batch(**_fields_of(Batch, batch)) for batch in document.get("batches", ())
    )
    for name in ("gradients", "local", "weights"):
        values[name] = _sketches(document.get(name))
    return Step(**values)


def _sketches(document: Any) -> dict[str, Any]:
    sketches = cast("Mapping[str, Any]", document or {})
    return {
        name: None if value is None else Sketch(**_fields_of(Sketch, value))
        for name, value in sketches.items()
    }


def _fields_of(kind: type, document: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a class that a document has; lists become tuples."""
    names = {field.name for field in fields(kind)}
    return {
        name: tuple(cast("list[Any]", value)) if isinstance(value, list) else value
        for name, value in document.items()
        if name in names
    }


def copies(name: str, tensors: Sequence[Mapping[str, Any]]) -> Iterator[list[int]]:
    """Ranks that hold the same piece of a parameter, together; only those of more than one."""
    groups: dict[Any, list[int]] = {}
    for rank, by_name in enumerate(tensors):
        sketch = by_name.get(name)
        if sketch is not None:
            groups.setdefault((sketch.shape, sketch.piece), []).append(rank)
    yield from (ranks for ranks in groups.values() if len(ranks) > 1)
