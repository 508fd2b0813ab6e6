"""How the work is spread: a parallel layout, and one value of options for each library.

Names (the same in Python, on the command line and in the widgets): ``single``, ``ddp``, ``fsdp``,
``fsdp-grad-op``, ``hsdp``, ``zero1``, ``zero2``, ``zero3``, ``tp``, ``pp``, ``cp``, or degrees
joined by "-": ``dp2-tp2``, ``fsdp4-tp2``, ``pp2-dp2``, ``zero1x8-tp2``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

from workbench.describe.checks import plain, require_positive
from workbench.describe.library_options import (
    BACKENDS,
    ESTIMATED,
    WITHOUT_LIBRARY,
    ContextOptions,
    DdpOptions,
    DeepSpeedOptions,
    FsdpOptions,
    PipelineOptions,
    Scope,
)
from workbench.describe.option import Group, Needs, Option, flat_names, flat_values, replace_flat
from workbench.describe.option_limits import check_declared
from workbench.describe.other_names import unknown_option
from workbench.describe.shown import changed_fields
from workbench.errors import UnknownNameError, UsageError

NAMES = (
    *("single", "ddp", "fsdp", "fsdp-grad-op", "hsdp"),
    *("zero1", "zero2", "zero3", "tp", "pp", "cp", "ep"),
)
DEGREES = ("dp_replicate", "dp_shard", "tp", "cp", "pp", "ep")
RECOMPUTE = ("none", "selective", "full")
SELECTIVE = ("op", "attention", "mlp", "norm", "moe")
OFFLOADS = ("optimizer", "parameters", "activations")
ENGINES = ("fsdp1", "torch")
_PART = re.compile(r"(?:(zero[123])x|(dp|ddp|fsdp|tp|pp|cp|ep))(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """A layout and the options of each library. Degrees multiply to the number of ranks.

    Each option has one flat name (`options`, `with_options`, command line, record), whichever
    library's value holds it.
    """

    __repr__ = changed_fields

    name: str
    """Name of the layout, as `parse` takes it."""
    dp_replicate: int = 1
    """Data-parallel replicas that hold complete states (DDP, outer dimension of HSDP)."""
    dp_shard: int = 1
    """Ranks over which states are sharded (FSDP, ZeRO)."""
    tp: int = 1
    """Tensor-parallel degree."""
    cp: int = 1
    """Context-parallel degree (ring or Ulysses); FSDP and ZeRO shard over dp_shard x cp."""
    pp: int = 1
    """Pipeline stages."""
    ep: int = 1
    """Expert-parallel degree (within the data-parallel ranks)."""
    expert_tp: Annotated[
        int, Option(help="ep: ranks that split each expert.", least=1), Scope(axis="ep")
    ] = 1
    """Ranks that split each expert (Megatron's expert tensor parallelism)."""
    zero_stage: int | None = None
    """ZeRO stage with DeepSpeed's or Megatron's layout (optimizer 1, + gradients 2, + weights 3);
    None: FSDP when dp_shard > 1, else plain data parallelism."""
    engine: Annotated[
        str | None, Option(help="fsdp: fsdp1. zero1: torch (not DeepSpeed).", choices=ENGINES)
    ] = None
    """The library where there are two: fsdp1 instead of FSDP2, torch instead of DeepSpeed for
    ZeRO-1 (ZeroRedundancyOptimizer); None = FSDP2, DeepSpeed."""
    sequence_parallel: Annotated[
        bool,
        Option(help="tp: split norms and residuals too."),
        Scope(axis="tp", set_by=BACKENDS),
    ] = False
    """TP: norms, dropout and residuals are split along the sequence too (Megatron SP)."""
    recompute: Annotated[
        str, Option(help="none or full (selective: estimates alone).", choices=RECOMPUTE)
    ] = "none"
    """Activation checkpointing: none, selective (see `recompute_parts`), full (each block)."""
    recompute_parts: Annotated[
        tuple[str, ...],
        Option(
            help="selective: attention, mlp, norm, moe, op.",
            choices=SELECTIVE,
            metavar="P,P",
            split="commas",
            singular="recompute part",
        ),
        Needs(fact="recompute", values=("selective",)),
    ] = ("attention",)
    """selective: what is recomputed: attention (its core), mlp, norm, moe, or op (torchtitan's:
    every second matmul is kept)."""
    recompute_layers: Annotated[
        int | None,
        Option(help="full: only so many blocks per stage.", least=0),
        ESTIMATED,
        Needs(fact="recompute", values=("full",)),
    ] = None
    """full: only so many blocks per stage are checkpointed; None = all."""
    offload: Annotated[
        tuple[str, ...],
        Option(
            help="To the host: optimizer,parameters (FSDP: both); '' = none.",
            choices=OFFLOADS,
            metavar="O,O",
            split="commas",
        ),
        Scope(
            set_by=("fsdp", "deepspeed"),
            name="FSDP and DeepSpeed",
            by_script=WITHOUT_LIBRARY,
            in_any_script=("activations",),
        ),
    ] = ()
    """What lives in host memory: optimizer, parameters, activations."""
    sync_every_micro_batch: Annotated[
        bool | None,
        Option(
            help="Reduce gradients after every micro-batch, or after the last one only.",
            flag="sync",
            off_flag="no-sync",
        ),
        Scope(
            set_by=("ddp", "fsdp", "deepspeed"),
            name="DDP, FSDP and DeepSpeed",
            among="reduce_ranks",
        ),
    ] = None
    """Gradients are reduced after every micro-batch; False: no_sync, unsharded gradients stay on
    the card until the last one. None = what the library does by default (FSDP, ZeRO: reduce)."""
    reduce_bucket: Annotated[
        int | None,
        Option(help="Elements per bucket.", least=1),
        Scope(set_by=("ddp", "deepspeed"), name="DDP and DeepSpeed", among="reduce_ranks"),
    ] = None
    """Elements per reduction bucket; None = the library's default (DeepSpeed 5e8, DDP 25 MiB)."""
    overlap_gradients: Annotated[
        bool | None,
        Option(help="Reduce gradients beside compute.", off_flag="no-overlap-gradients"),
        Scope(set_by=("deepspeed",), name="DeepSpeed", by_script=BACKENDS, among="reduce_ranks"),
    ] = None
    """Gradients are reduced (and sharded weights gathered) while blocks compute; None = as the
    library does by default: yes."""
    overlap_tp: Annotated[
        bool,
        Option(help="tp: collectives beside the matmuls.", off_flag="no-overlap-tp"),
        Scope(axis="tp"),
    ] = False
    """Tensor-parallel collectives run beside the matmuls they belong to (async TP)."""
    overlap_ep: Annotated[
        bool, Option(help="ep: exchange beside it.", off_flag="no-overlap-ep"), Scope(axis="ep")
    ] = False
    """Expert-parallel exchange runs beside another micro-batch's compute (DualPipe)."""
    ddp: Annotated[
        DdpOptions,
        Group(of=DdpOptions, is_flat=True),
        Scope(set_by=("ddp",), name="DDP", among="dp_replicate"),
    ] = DdpOptions()
    """Options of DDP."""
    fsdp: Annotated[
        FsdpOptions,
        Group(of=FsdpOptions, is_flat=True),
        Scope(set_by=("fsdp",), name="FSDP", among="shard_ranks"),
    ] = FsdpOptions()
    """Options of FSDP."""
    deepspeed: Annotated[
        DeepSpeedOptions,
        Group(of=DeepSpeedOptions, is_flat=True),
        Scope(set_by=("deepspeed",), name="DeepSpeed", among="zero_ranks"),
    ] = DeepSpeedOptions()
    """Options of DeepSpeed."""
    pipeline: Annotated[
        PipelineOptions,
        Group(of=PipelineOptions, is_flat=True),
        Scope(axis="pp", set_by=BACKENDS),
    ] = PipelineOptions()
    """How pipeline stages work together."""
    context: Annotated[
        ContextOptions,
        Group(of=ContextOptions, is_flat=True),
        Scope(axis="cp", set_by=BACKENDS),
    ] = ContextOptions()
    """How context-parallel ranks exchange a sequence."""

    def __post_init__(self) -> None:
        for field in DEGREES:
            require_positive(field, getattr(self, field))
        check_declared(self)
        if self.zero_stage not in {None, 1, 2, 3}:
            raise UsageError(f"zero_stage must be 1, 2, 3 or None, not {self.zero_stage}.")
        if self.recompute == "selective" and not self.recompute_parts:
            raise UsageError(
                f"recompute_parts is empty. Name some of {', '.join(SELECTIVE)}, or use recompute "
                "'none'."
            )
        ranks = self.data_ranks * self.cp * self.tp
        if self.ep > 1 and ranks % (self.ep * self.expert_tp):
            raise UsageError(
                f"ep {self.ep} x expert_tp {self.expert_tp} must divide the {ranks} ranks of one "
                f"pipeline stage (dp x cp x tp). Add ranks of data parallelism, for example "
                f"fsdp{self.ep * self.expert_tp}-ep{self.ep}."
            )

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.dp_replicate * self.dp_shard * self.tp * self.cp * self.pp

    @property
    def keeps_gathered_weights(self) -> bool:
        """Whether weights that FSDP gathered stay until the step's end.

        Always so between the stages of a pipeline, in our recipe and in torchtitan (parallelize.py
        0.2): each micro-batch would gather them again.
        """
        return not self.fsdp.reshard_after_forward or self.pp > 1

    @property
    def reduces_once(self) -> bool:
        """Whether gradients stay unsharded until the last micro-batch has reduced them.

        By itself so for FSDP within a pipeline: torch's stage sets set_requires_gradient_sync to
        False for the micro-batches before (torch/distributed/pipelining/stage.py 2.13).
        """
        if self.sync_every_micro_batch is None:
            return self.pp > 1 and self.dp_shard > 1 and self.zero_stage is None
        return not self.sync_every_micro_batch

    @property
    def data_ranks(self) -> int:
        """Ranks that see different data."""
        return self.dp_replicate * self.dp_shard

    @property
    def expert_split(self) -> int:
        """Ranks over which one expert's matrices are split."""
        return self.tp if self.ep == 1 else self.expert_tp

    @property
    def expert_ways(self) -> int:
        """How much smaller the data-parallel group of one expert is than that of dense weights."""
        return max(1, self.ep * self.expert_tp // self.tp) if self.ep > 1 else 1

    @property
    def shard_ranks(self) -> int:
        """Ranks over which sharded states are spread: FSDP and ZeRO count context ranks too."""
        return self.dp_shard * self.cp

    @property
    def zero_ranks(self) -> int:
        """Ranks over which ZeRO spreads states; 1 without it."""
        return self.shard_ranks if self.zero_stage else 1

    @property
    def reduce_ranks(self) -> int:
        """Ranks over which a gradient is reduced."""
        return self.data_ranks * self.cp

    def options(self) -> dict[str, Any]:
        """Every field by its flat name, as records and the command line name it."""
        return flat_values(self)

    def options_beside_name(self) -> dict[str, Any]:
        """The options in which it differs from the strategy of its name.

        >>> Strategy.parse("fsdp", 8).with_options(state_dict="full").options_beside_name()
        {'state_dict': 'full'}
        """
        try:
            usual = Strategy.parse(self.name, self.world_size).options()
        except UsageError:  # built by hand under a name of its own
            usual = Strategy(name=self.name).options()
        return {name: value for name, value in self.options().items() if value != usual[name]}

    def with_options(self, **options: Any) -> Strategy:
        """Return a copy with other options, by their flat names.

        Raises:
            UsageError: an option is unknown or its value is not allowed.

        >>> Strategy.parse("fsdp", 8).with_options(recompute="full").recompute
        'full'
        """
        names = flat_names(Strategy)
        for name in options:
            if name not in names:
                raise unknown_option("strategy option", name, names)
        return replace_flat(self, options)

    @staticmethod
    def usual(ranks: int) -> str:
        """Name of the default strategy: one that suits any script.

        >>> Strategy.usual(1), Strategy.usual(8)
        ('single', 'ddp')
        """
        return "single" if ranks == 1 else "ddp"

    @staticmethod
    def ranks_of(name: str) -> int | None:
        """The ranks that a combination of degrees needs; None for a plain name.

        >>> Strategy.ranks_of("pp2-dp2-tp2"), Strategy.ranks_of("fsdp")
        (8, None)
        """
        text = name.strip().lower()
        if text == "single":
            return 1
        if text in NAMES:
            return None
        ranks = (part for part in text.split("-") if not part.startswith("ep"))  # within the others
        numbers = [re.search(r"(\d+)$", part) for part in ranks]
        return math.prod(int(number[1]) for number in numbers if number)

    @classmethod
    def recorded(cls, document: Mapping[str, Any]) -> Strategy:
        """From a record, which may be one of an earlier or later version.

        >>> Strategy.recorded({**Strategy.parse("zero2", 2).options(), "unheard_of": 1}).zero_stage
        2
        """
        options: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value  # pyright: ignore[reportUnknownArgumentType]
            for name, value in document.items()
            if name in flat_names(cls) and value is not None
        }
        return cls(name=options.pop("name")).with_options(**options)

    @classmethod
    def parse(cls, name: str, processes: int) -> Strategy:
        """Build the strategy `name` for `processes` ranks.

        Raises:
            UnknownNameError: no such strategy.
            UsageError: the degrees do not multiply to the number of processes.

        >>> Strategy.parse("ddp", 2).dp_replicate, Strategy.parse("dp2-tp2", 4).tp
        (2, 2)
        """
        text, processes = name.strip().lower(), plain(processes)
        combined = None if text in NAMES else _combined(cls(name=text), text)
        if processes < 1:
            raise UsageError(f"The number of processes must be at least 1, not {processes}.")
        if text == "single" and processes != 1:
            raise UsageError(
                f"Strategy 'single' runs 1 process, not {processes}. Use 'ddp' for {processes}."
            )
        if combined is None:
            return _named(cls(name=text), text, processes)
        if combined.world_size != processes:
            raise UsageError(
                f"{text} needs {combined.world_size} processes, not {processes}. "
                f"Use --nproc {combined.world_size} or change a degree."
            )
        return combined


def _named(base: Strategy, text: str, processes: int) -> Strategy:
    if text in {"single", "ddp"}:
        return replace(base, dp_replicate=processes)
    if text in {"tp", "pp", "cp"}:
        return replace(base, **{text: processes})
    if text == "ep":
        return replace(base, dp_replicate=processes, ep=processes)
    if text == "hsdp":
        if processes % 2 or processes < 4:
            raise UsageError(f"hsdp needs an even number of at least 4 processes, not {processes}.")
        return replace(base, dp_replicate=2, dp_shard=processes // 2)
    stage = int(text[-1]) if text.startswith("zero") else None
    sharded = replace(base, dp_shard=processes, zero_stage=stage)
    return sharded.with_options(reshard_after_forward=text != "fsdp-grad-op")


def _combined(base: Strategy, text: str) -> Strategy:
    fields = {"dp": "dp_replicate", "ddp": "dp_replicate", "fsdp": "dp_shard"}
    degrees: dict[str, int] = {}
    for part in text.split("-"):
        match = _PART.fullmatch(part)
        if match is None:
            raise UnknownNameError.near("strategy", text, NAMES)
        zero, word, degree = match.groups()
        field = "dp_shard" if zero else fields.get(word, word)
        if field in degrees:
            raise UsageError(f"Strategy {text!r} gives {zero or word} twice.")
        degrees[field] = int(degree)
        if zero:
            degrees["zero_stage"] = int(zero[-1])
    return replace(base, **degrees)
