"""The options of each library in addition to the layout, as one value for each.

A `Scope` beside a field says who reads it. The launcher refuses an option that nothing reads, and
so does an estimate, unless a script may do the same by itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

from workbench.describe.option import Needs, Option
from workbench.describe.option_limits import check_declared
from workbench.describe.shown import changed_fields

Backend = Literal["single", "ddp", "fsdp", "deepspeed", "script", "mesh"]
"""Who spreads the work: one process, DDP, FSDP, DeepSpeed, the recipe itself by flags, or
a user's own script with Accelerate's ParallelismConfig."""
BACKENDS: tuple[Backend, ...] = get_args(Backend)
CP_METHODS = ("ring", "ulysses")
COMM_HOOKS = ("fp16", "bf16", "powersgd", "topk")
OFFLOAD_DEVICES = ("cpu", "nvme")
SCHEDULES = ("1f1b", "gpipe", "interleaved", "zero-bubble", "naive")
STATE_DICTS = ("sharded", "full")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """Who reads an option of a strategy: metadata of its field, or of its library's group."""

    set_by: tuple[Backend, ...] = ()
    """Backends that a launch passes it to; () = none of them: it is for estimates alone."""
    name: str = "estimates"
    """What a sentence calls them."""
    needs: tuple[str, Any] | None = None
    """A field of the strategy and the value without which they do not read it; None = no field."""
    by_script: tuple[Backend, ...] = ("script", "mesh")
    """Backends under which a script may do it by itself: an estimate counts it, a launch does not
    set it. A script that splits its own model may do anything."""
    in_any_script: tuple[str, ...] = ()
    """Those of its values that any script may do by itself."""
    among: str = ""
    """A property of the strategy that must be above 1 for a script to do it; "" = none."""
    axis: str = ""
    """The degree of parallelism that it belongs to: with 1 it changes nothing."""

    def script_may(self, backend_name: Backend, value: Any) -> bool:
        """Whether a script under that backend may do it by itself."""
        return backend_name in self.by_script or (
            isinstance(value, tuple) and set(value) <= set(self.in_any_script)  # pyright: ignore[reportUnknownArgumentType]
        )


ESTIMATED = Scope()
"""Of options that no library takes."""
WITHOUT_LIBRARY: tuple[Backend, ...] = ("single", "script", "mesh")


@dataclass(frozen=True, slots=True, kw_only=True)
class _LibraryOptions:
    """Options of one library; each is checked when it is set."""

    def __post_init__(self) -> None:
        check_declared(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class DdpOptions(_LibraryOptions):
    """Options of torch's DistributedDataParallel."""

    __repr__ = changed_fields

    bucket_views: Annotated[bool, Option(help="DDP: gradients are views of buckets.")] = False
    """Gradients are views into the buckets (gradient_as_bucket_view; torch: False)."""
    comm_hook: Annotated[
        str | None, Option(help="DDP: fp16, bf16, powersgd or topk.", choices=COMM_HOOKS)
    ] = None
    """How gradients are compressed (fp16, bf16, powersgd, topk); None = they are not."""
    static_graph: Annotated[bool, Option(help="DDP: the graph never changes.")] = False
    """The set of used parameters never changes."""
    find_unused: Annotated[bool, Option(help="DDP: some parameters get no gradient.")] = False
    """Look for parameters without a gradient in each step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FsdpOptions(_LibraryOptions):
    """Options of torch's FSDP."""

    __repr__ = changed_fields

    reshard_after_forward: Annotated[bool, Option(help="FSDP: free gathered weights.")] = True
    """Free the unsharded parameters after forward (FULL_SHARD) or keep them (grad-op)."""
    wrap_min_parameters: Annotated[
        int | None,
        Option(help="FSDP1: wrap each module above so many parameters.", least=1),
        Scope(
            set_by=("fsdp",),
            name="FSDP1 (engine fsdp1)",
            needs=("engine", "fsdp1"),
            among="shard_ranks",
        ),
    ] = None
    """FSDP1: wrap by size, each module above so many parameters; None = by the block's class."""
    state_dict: Annotated[
        str, Option(help="FSDP checkpoints: sharded or full.", choices=STATE_DICTS)
    ] = "sharded"
    """Checkpoints as one file per rank (sharded) or as one file (full)."""
    meta_init: Annotated[bool, Option(help="FSDP: only rank 0 builds the full model.")] = False
    """Only rank 0 holds the full model while it is built; the others start without storage (meta
    device) and receive their shard."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepSpeedOptions(_LibraryOptions):
    """Options of DeepSpeed's ZeRO."""

    __repr__ = changed_fields

    gather_bucket: Annotated[
        int | None, Option(help="ZeRO: elements per gather or prefetch bucket.", least=1)
    ] = None
    """Allgather / prefetch bucket in elements; None = default (5e8, stage 3: 5e7)."""
    live_parameters: Annotated[
        int | None,
        Option(help="zero3: most parameters gathered at once.", least=1),
        Scope(
            set_by=("deepspeed",),
            name="DeepSpeed's ZeRO-3",
            needs=("zero_stage", 3),
            among="zero_ranks",
        ),
    ] = None
    """ZeRO-3: stage3_max_live_parameters in elements; None = DeepSpeed's default (1e9)."""
    offload_device: Annotated[
        str,
        Option(help="cpu or nvme (DeepSpeed).", choices=OFFLOAD_DEVICES),
        Scope(set_by=("fsdp", "deepspeed"), name="DeepSpeed", by_script=WITHOUT_LIBRARY),
        Needs(fact="offload"),
    ] = "cpu"
    """Where offloaded states live: cpu or nvme (GPU memory is the same)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineOptions(_LibraryOptions):
    """Options of pipeline parallelism."""

    __repr__ = changed_fields

    schedule: Annotated[
        str, Option(help="pp: 1f1b, gpipe, interleaved, zero-bubble, naive.", choices=SCHEDULES)
    ] = "1f1b"
    """Order of the passes; naive = one GPU works at a time (device_map)."""
    virtual_stages: Annotated[int, Option(help="pp: model chunks per rank.", least=1)] = 1
    """Model chunks per rank (interleaved)."""
    embedding_as_layer: Annotated[
        bool, Option(help="pp: embedding and head count as a block each."), Scope(axis="pp")
    ] = False
    """Embedding and head each take the place of one block when blocks are dealt out."""
    balanced_by_flops: Annotated[
        bool,
        Option(help="pp: blocks and head are dealt out by FLOPs.", off_flag="no-balanced-by-flops"),
        Scope(axis="pp"),
    ] = False
    """Blocks are dealt out by their matrix products, the head's counted too (nanotron)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextOptions(_LibraryOptions):
    """Options of context parallelism."""

    __repr__ = changed_fields

    cp_method: Annotated[str, Option(help="cp: ring or ulysses.", choices=CP_METHODS)] = "ring"
    """ring (keys and values travel) or ulysses (heads are exchanged)."""
