"""What all parts of an estimate need to know of one rank, computed once and passed along.

Bytes per element: 16 bytes of states per parameter with AdamW in fp32 or mixed precision (4+4+8,
or 2+2+4+8), 8 in pure bf16: arXiv 1910.02054 section 3; estimators.md 2.1.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from workbench.describe import ImplementationAssumptions, Model, Strategy, Workload

_QUANTIZED = {
    "none": 0.0,
    "int8": 1.0,
    "int4": 0.5 + 2.5 / 128,
    "nf4": 0.5 + 4 / 64,
    "nf4-dq": 0.5 + 1 / 64 + 4 / (64 * 256),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Widths:
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
class Ways:
    """Ranks over which each kind of state is sharded."""

    weights: int
    gradients: int
    optimizer: int


@dataclass(frozen=True, kw_only=True)  # without slots, so that what follows is worked out once
class RankContext:
    """Workload and strategy with the sizes that follow from them, the same on every rank."""

    workload: Workload
    strategy: Strategy

    @property
    def model(self) -> Model:
        """The workload's."""
        return self.workload.model

    @property
    def kernels(self) -> ImplementationAssumptions:
        """The workload's."""
        return self.workload.kernels

    @property
    def trains(self) -> bool:
        """Whether the model's own weights are trained, not LoRA adapters."""
        return not self.workload.lora_rank

    @cached_property
    def width(self) -> Widths:
        """Bytes per element of each state."""
        return widths(self.workload, self.strategy)

    @cached_property
    def ways(self) -> Ways:
        """Ranks over which each kind of state is sharded."""
        return ways(self.strategy)

    @cached_property
    def autocast(self) -> bool:
        """Whether fp32 weights are cast per operation (torch.autocast), not ahead of time."""
        if self.kernels.separate_casts is not None:
            return self.kernels.separate_casts
        casts = self.width.weight == 4 and self.width.compute == 2
        return casts and self.strategy.shard_ranks == 1 and self.trains

    @cached_property
    def tokens(self) -> float:
        """Tokens of one micro-batch on this rank."""
        return self.workload.tokens / self.strategy.cp

    @cached_property
    def residual(self) -> float:
        """Elements of one residual-wide tensor, split by sequence parallelism."""
        split = self.strategy.tp if self.strategy.sequence_parallel else 1
        return self.tokens * self.model.hidden / split

    @property
    def gathered(self) -> float:
        """The same as a linear of a sequence-parallel layer keeps it."""
        if self.kernels.gathered_inputs:
            return self.tokens * self.model.hidden
        return self.residual

    @property
    def residual_bytes(self) -> int:
        """Bytes per element of the residual stream."""
        return 4 if self.autocast else self.width.compute

    @property
    def is_fsdp(self) -> bool:
        """Whether FSDP shards weights, gradients and states."""
        return self.strategy.zero_stage is None and self.strategy.shard_ranks > 1

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

    def keeps_input(self, *targets: str) -> bool:
        """Whether a linear of these keeps its input: it does where it learns."""
        four_bits = self.workload.quantization in {"nf4", "nf4-dq"}
        always = self.trains or (self.kernels.quantized_inputs and four_bits)
        return always or bool(set(targets) & set(self.workload.lora_targets))

    def mlp_slices(self, tokens: float) -> float:
        """Slices of a tiled MLP: as many as keep a slice's length near the hidden width (ALST)."""
        return max(1.0, tokens / self.model.hidden) if self.kernels.tiled_mlp else 1.0


def widths(workload: Workload, strategy: Strategy) -> Widths:
    """Bytes per element for this precision, implementation and strategy."""
    mixed = workload.precision in {"bf16", "fp16", "fp8"}
    pure = workload.precision.endswith("-pure")
    separate = workload.kernels.master_copy
    if separate is None:
        separate = mixed and strategy.zero_stage is not None
    weight = 2 if pure or (mixed and separate) else 4
    frozen = workload.compute_bytes if workload.lora_rank else weight
    return Widths(
        weight=weight,
        compute=workload.compute_bytes,
        gradient=workload.kernels.gradient_bytes or weight,
        master=4 if separate and not workload.lora_rank else 0,
        adapter=workload.adapter_bytes or (2 if pure else 4),
        frozen=frozen,
        quantized=_QUANTIZED[workload.quantization] or frozen,
    )


def ways(strategy: Strategy) -> Ways:
    """Ranks over which weights, gradients and optimizer states are sharded."""
    ranks, stage = strategy.shard_ranks, strategy.zero_stage
    fsdp = stage is None and ranks > 1
    return Ways(
        weights=ranks if fsdp or stage == 3 else 1,
        gradients=ranks if fsdp or stage in {2, 3} else 1,
        optimizer=ranks if fsdp or stage is not None else 1,
    )
