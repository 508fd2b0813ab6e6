"""Options that describe what, how and where, shared by every command that estimates.

One field of `Description` is one option: its annotation says what Typer shows, its default is the
option's default. `with_description` turns a function of a `Description` into a Typer command.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Protocol, TypeVar, get_type_hints

import typer

from workbench.describe import KERNELS, Cluster, Kernels, Model, Strategy, Workload
from workbench.describe.checks import require_choice, require_positive
from workbench.errors import UsageError


def option(text: str, *names: str, metavar: str | None = None) -> Any:
    """A Typer option with its help."""
    return typer.Option(*names, help=text, metavar=metavar, show_default=True)


@dataclass(frozen=True, kw_only=True)
class Description:
    """What, how and where, as given on the command line."""

    model: Annotated[str, option("Catalog name, or a config.json or its folder.", metavar="M")]
    gpu: Annotated[
        str | None, option("GPU of the catalog [default: this host's].", metavar="G")
    ] = None
    gpus: Annotated[int | None, option("GPUs per node [default: the strategy's, or 1].")] = None
    nodes: Annotated[int, option("Equal machines.")] = 1
    network: Annotated[
        str | None, option("Between nodes: '8x400 infiniband', '100 ethernet' …", metavar="F")
    ] = None
    link: Annotated[str, option("Between a node's GPUs: catalog (its own), nvlink, pcie.")] = (
        "catalog"
    )
    cpu: Annotated[bool, option("CPU ranks, no GPU.", "--cpu")] = False
    strategy: Annotated[
        str | None, option("single, ddp, fsdp, zero3, dp2-tp2 … [default: single or fsdp].")
    ] = None
    micro_batch: Annotated[int, option("Sequences per forward pass and GPU.")] = 1
    seq_len: Annotated[
        int | None, option("Tokens per sequence [default: 2048 or the model's table].")
    ] = None
    accumulate: Annotated[int, option("Micro-batches per optimizer step.")] = 1
    precision: Annotated[str, option("fp32, bf16, fp16, fp8 (mixed), bf16-pure.")] = "bf16"
    optimizer: Annotated[str, option("adamw, adamw-fused, adamw-8bit, …, sgd.")] = "adamw"
    recompute: Annotated[str, option("none, selective, full.")] = "none"
    recompute_parts: Annotated[
        str, option("What selective repeats: attention, mlp, norm, moe, op.", metavar="P,P")
    ] = "attention"
    recompute_layers: Annotated[int | None, option("full: only so many blocks per stage.")] = None
    lora_rank: Annotated[int, option("Rank of LoRA adapters; 0 = train everything.")] = 0
    lora_targets: Annotated[str, option("Layers with adapters.", metavar="T,T")] = "q,v"
    quantization: Annotated[
        str, option("Frozen weights of LoRA: none, int8, int4, nf4, nf4-dq.")
    ] = "none"
    trained_layers: Annotated[int | None, option("Train only the last so many blocks.")] = None
    offload: Annotated[
        str, option("To the host: optimizer, parameters, activations.", metavar="O,O")
    ] = ""
    attention: Annotated[str, option("sdpa, flash, eager.")] = "sdpa"
    flash_version: Annotated[
        int, option("Fused attention: 1, 2 (torch), 3 (FlashAttention-3, cuDNN).")
    ] = 2
    attention_mask: Annotated[bool, option("A mask is materialised.", "--attention-mask")] = False
    loss: Annotated[str, option("full, chunked, fused.")] = "full"
    loss_chunks: Annotated[int, option("Chunks of the chunked loss.")] = 8
    keep_logits: Annotated[
        bool, option("The model's output outlives backward.", "--keep-logits")
    ] = False
    variable_length: Annotated[bool, option("Batches differ in length.", "--variable-length")] = (
        False
    )
    kernels: Annotated[str, option("transformers, fused, compiled, megatron.")] = "transformers"
    expandable_segments: Annotated[
        bool, option("PYTORCH_CUDA_ALLOC_CONF has it.", "--expandable-segments")
    ] = False
    whole_before_sharding: Annotated[
        bool, option("Ranks build the whole model first.", "--whole-before-sharding")
    ] = False
    optimizer_in_backward: Annotated[
        bool, option("Gradients are applied and freed at once.", "--optimizer-in-backward")
    ] = False
    sequence_parallel: Annotated[
        bool, option("tp: norms and residuals are split too.", "--sequence-parallel")
    ] = False
    schedule: Annotated[str, option("pp: 1f1b, gpipe, interleaved, zero-bubble, naive.")] = "1f1b"
    virtual_stages: Annotated[int, option("pp: model chunks per GPU.")] = 1
    bucket_views: Annotated[
        bool, option("ddp: gradient_as_bucket_view=True.", "--bucket-views")
    ] = False
    comm_hook: Annotated[str | None, option("ddp: fp16, bf16, powersgd, topk.")] = None
    cp_method: Annotated[str, option("cp: ring, ulysses.")] = "ring"
    no_sync: Annotated[
        bool, option("Reduce gradients only after the last micro-batch.", "--no-sync")
    ] = False


class Options(Protocol):
    """Any dataclass whose fields are annotated as options."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


Asked = TypeVar("Asked", bound=Options)


def with_description(function: Callable[[Asked], None]) -> Callable[..., None]:
    """Make a command of `function`: one option per field of the class of its argument `asked`."""
    kind: type[Asked] = get_type_hints(function)["asked"]
    hints = get_type_hints(kind, include_extras=True)

    def command(**values: Any) -> None:
        function(kind(**values))

    parameters = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
            annotation=hints[field.name],
        )
        for field in fields(kind)
    ]
    command.__doc__, command.__name__ = function.__doc__, function.__name__
    command.__dict__["__signature__"] = inspect.Signature(parameters)
    return command


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """The three inputs, resolved."""

    workload: Workload
    """What."""
    strategy: Strategy
    """How."""
    cluster: Cluster | str
    """Where; a device name when no card is known."""
    notes: tuple[str, ...]
    """What was read by analogy or chosen by us."""


def describe(asked: Description) -> Described:
    """Build workload, strategy and cluster.

    Raises:
        UsageError: a value is impossible; the message says what is allowed.
    """
    model, notes = read_model(asked.model)
    cluster, world = where(asked)
    strategy = _strategy(asked, world)
    workload = _workload(asked, model)
    return Described(workload=workload, strategy=strategy, cluster=cluster, notes=notes)


def read_model(given: str) -> tuple[Model, tuple[str, ...]]:
    """The model of the catalog or of a config file, and what was assumed while reading it.

    Raises:
        UsageError: no such file or name, or a config that lacks something.
    """
    from workbench.describe.catalog import model  # noqa: PLC0415  (reads a data file)
    from workbench.describe.configs import read_config  # noqa: PLC0415

    path = Path(given).expanduser()
    named_as_file = path.suffix == ".json" or given.startswith((".", "/", "~"))
    if not path.exists() and not named_as_file:
        return model(given), ()
    read = read_config(path)
    return read.model, tuple(read.notes)


def where(asked: Description) -> tuple[Cluster | str, int]:
    """The cluster and the number of ranks."""
    from workbench.describe.detection import detect_host  # noqa: PLC0415  (asks the driver)

    require_positive("nodes", asked.nodes)
    if asked.gpus is not None:
        require_positive("gpus", asked.gpus)
    gpus = asked.gpus if asked.gpus is not None else _gpus_of(asked)
    world = gpus * asked.nodes
    if asked.gpu is not None:
        cluster = Cluster.rented(
            asked.gpu, gpus=gpus, nodes=asked.nodes, network=asked.network, link=asked.link
        )
        return cluster, world
    if asked.cpu:
        return "cpu", world
    host = detect_host()
    if asked.nodes == 1 and gpus <= len(host.gpus):
        return replace(host, gpus=host.gpus[:gpus]), world
    return "cuda", world


def _gpus_of(asked: Description) -> int:
    """GPUs per node that the strategy's name asks for."""
    if asked.strategy is None:
        return 1
    world = Strategy.ranks_of(asked.strategy)
    if world is None:
        raise UsageError(
            f"Strategy {asked.strategy!r} needs a number of GPUs. Add --gpus N (per node)."
        )
    return max(1, world // asked.nodes)


def _strategy(asked: Description, world: int) -> Strategy:
    name = asked.strategy or ("single" if world == 1 else "fsdp")
    needed = Strategy.ranks_of(name)
    base = Strategy.parse(name, world if needed is None or needed == 1 else needed)
    if base.world_size != world:
        raise UsageError(
            f"{name} needs {base.world_size} GPUs, not {world} "
            f"({asked.nodes} x {world // asked.nodes}). Change --gpus, --nodes or a degree."
        )
    options: dict[str, Any] = {"sync_every_micro_batch": False} if asked.no_sync else {}
    return base.with_options(
        recompute=asked.recompute,
        recompute_parts=words(asked.recompute_parts),
        recompute_layers=asked.recompute_layers,
        offload=words(asked.offload),
        sequence_parallel=asked.sequence_parallel,
        schedule=asked.schedule,
        virtual_stages=asked.virtual_stages,
        bucket_views=asked.bucket_views,
        comm_hook=asked.comm_hook,
        cp_method=asked.cp_method,
        **options,
    )


def words(text: str) -> tuple[str, ...]:
    """The parts between commas."""
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _workload(asked: Description, model: Model) -> Workload:
    table = model.max_positions if model.position == "learned" else 0
    seq_len = asked.seq_len if asked.seq_len is not None else min(2048, table or 2048)
    if table and model.kind != "vision" and seq_len > table:
        raise UsageError(
            f"{model.name} has {table} positions; a sequence of {seq_len} does not fit them. "
            f"Give --seq-len {table} or less."
        )
    return Workload(
        model=model,
        seq_len=seq_len,
        micro_batch=asked.micro_batch,
        accumulate=asked.accumulate,
        precision=asked.precision,
        optimizer=asked.optimizer,
        lora_rank=asked.lora_rank,
        lora_targets=words(asked.lora_targets),
        quantization=asked.quantization,
        trained_layers=asked.trained_layers,
        attention=asked.attention,
        attention_mask=asked.attention_mask,
        loss=asked.loss,
        loss_chunks=asked.loss_chunks,
        keep_logits=asked.keep_logits,
        variable_length=asked.variable_length,
        kernels=_kernels(asked),
    )


def _kernels(asked: Description) -> Kernels:
    require_choice("kernels", asked.kernels, tuple(KERNELS))
    return replace(
        KERNELS[asked.kernels],
        flash_version=asked.flash_version,
        expandable_segments=asked.expandable_segments,
        whole_before_sharding=asked.whole_before_sharding,
        optimizer_in_backward=asked.optimizer_in_backward,
    )
