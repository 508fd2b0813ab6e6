"""What all parts of an estimate need to know of one rank, computed once and passed along.

Bytes per element: 16 bytes of states per parameter with AdamW in fp32 or mixed precision (4+4+8,
or 2+2+4+8), 8 in pure bf16: arXiv 1910.02054 section 3.
"""

from __future__ import annotations

from dataclasses import dataclass

from workbench.describe import ImplementationAssumptions, Model, Strategy, Workload

_QUANTIZED = {
    "none": 0.0,
    "int8": 1.0,
    "int4": 0.5 + 2.5 / 128,
    "nf4": 0.5 + 4 / 64,
    "nf4-dq": 0.5 + 1 / 64 + 4 / (64 * 256),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StateWidths:
    """Bytes per element of each state."""

    weight: int
    """A trained weight as stored."""
    compute: int
    """A weight or activation as computed with."""
    gradient: int
    """A gradient as accumulated."""
    master: int
    """fp32 copy beside a low-precision weight, 0 without one."""
    adapter: int
    """A LoRA weight, its gradient and each of its moments."""
    frozen: int
    """A frozen weight that is not quantized."""
    quantized: float
    """A frozen weight in a linear layer; equals `frozen` when nothing is quantized."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardDegrees:
    """Ranks over which each kind of state is sharded."""

    weights: int
    gradients: int
    optimizer: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RankContext:
    """Workload and strategy with the sizes that follow from them, the same on every rank."""

    workload: Workload
    strategy: Strategy
    model: Model
    """The workload's."""
    kernels: ImplementationAssumptions
    """The workload's."""
    width: StateWidths
    """Bytes per element of each state."""
    ways: ShardDegrees
    """Ranks over which each kind of state is sharded."""
    autocast: bool
    """Whether fp32 weights are cast per operation (torch.autocast) instead of ahead of time."""
    trains: bool
    """Whether the model's own weights are trained, not LoRA adapters."""
    tokens: float
    """Tokens of one micro-batch on this rank."""
    residual: float
    """Elements of one residual-wide tensor, split by sequence parallelism."""
    gathered: float
    """The same as a linear of a sequence-parallel layer keeps it."""
    residual_bytes: int
    """Bytes per element of the residual stream."""

    @property
    def is_fsdp(self) -> bool:
        """Whether FSDP shards weights, gradients and states."""
        return self.strategy.zero_stage is None and self.strategy.shard_ranks > 1

    @property
    def gradients_leave(self) -> bool:
        """Whether gradients go to the host: DeepSpeed's from stage 2, FSDP's with all states."""
        offload, stage = self.strategy.offload, self.strategy.zero_stage
        if self.is_fsdp:
            return "parameters" in offload
        return "optimizer" in offload and stage in {2, 3}

    @property
    def upcasts_norms(self) -> bool:
        """Whether norms are RMSNorms in plain PyTorch, which work on an fp32 copy."""
        return self.kernels.norm == "upcast" and self.model.norm.startswith("rmsnorm")

    @property
    def softmax_in_fp32(self) -> bool:
        """Low-precision scores go through fp32: Llama's own code, and any under autocast."""
        return self.width.compute == 2 and (self.upcasts_norms or self.residual_bytes == 4)

    @property
    def keeps_fp8(self) -> bool:
        """Whether linears keep their inputs in 8 bits."""
        return self.workload.precision == "fp8" and self.kernels.fp8_inputs

    @property
    def casts_adapters(self) -> bool:
        """fp32 adapters on a low-precision base: each keeps its own copy of its input (PEFT)."""
        workload = self.workload
        half = self.width.compute == 2 and not workload.precision.endswith("-pure")
        return half and workload.adapter_bytes != 2

    @property
    def four_bits(self) -> bool:
        """Whether frozen linears are bitsandbytes' of 4 bits."""
        return self.workload.quantization in {"nf4", "nf4-dq"}

    def keeps_input(self, *targets: str) -> bool:
        """Whether a linear of these keeps its input: it does where it learns."""
        always = self.trains or (self.kernels.quantized_inputs and self.four_bits)
        return always or bool(set(targets) & set(self.workload.lora_targets))

    def mlp_slices(self, tokens: float) -> float:
        """Slices of a tiled MLP: as many as keep a slice's length near the hidden width (ALST)."""
        return max(1.0, tokens / self.model.hidden) if self.kernels.tiled_mlp else 1.0


def rank_context(workload: Workload, strategy: Strategy) -> RankContext:
    """Work out what every part of an estimate shares."""
    model, kernels, width = workload.model, workload.kernels, widths(workload, strategy)
    trains = not workload.lora_rank
    autocast = kernels.separate_casts
    if autocast is None:
        casts = width.weight == 4 and width.compute == 2
        autocast = casts and strategy.shard_ranks == 1 and trains
    tokens = workload.tokens / strategy.cp
    residual = tokens * model.hidden / (strategy.tp if strategy.sequence_parallel else 1)
    return RankContext(
        workload=workload,
        strategy=strategy,
        model=model,
        kernels=kernels,
        width=width,
        ways=ways(strategy),
        autocast=autocast,
        trains=trains,
        tokens=tokens,
        residual=residual,
        gathered=tokens * model.hidden if kernels.gathered_inputs else residual,
        residual_bytes=4 if autocast else width.compute,
    )


def widths(workload: Workload, strategy: Strategy) -> StateWidths:
    """Bytes per element for this precision, implementation and strategy."""
    mixed = workload.precision in {"bf16", "fp16", "fp8"}
    pure = workload.precision.endswith("-pure")
    separate = workload.kernels.master_copy
    if separate is None:
        separate = mixed and strategy.zero_stage is not None
    weight = 2 if pure or (mixed and separate) else 4
    frozen = workload.compute_bytes if workload.lora_rank else weight
    return StateWidths(
        weight=weight,
        compute=workload.compute_bytes,
        gradient=workload.kernels.gradient_bytes or weight,
        master=4 if separate and not workload.lora_rank else 0,
        adapter=workload.adapter_bytes or (2 if pure else 4),
        frozen=frozen,
        quantized=_QUANTIZED[workload.quantization] or frozen,
    )


def ways(strategy: Strategy) -> ShardDegrees:
    """Ranks over which weights, gradients and optimizer states are sharded."""
    ranks, stage = strategy.shard_ranks, strategy.zero_stage
    fsdp = stage is None and ranks > 1
    return ShardDegrees(
        weights=ranks if fsdp or stage == 3 else 1,
        gradients=ranks if fsdp or stage in {2, 3} else 1,
        optimizer=ranks if fsdp or stage is not None else 1,
    )
