"""Bytes of the model's states: weights, master copy, gradients, optimizer, frozen base, adapters.

16 bytes per parameter with AdamW in fp32 or mixed precision (4+4+8, or 2+2+4+8), 8 in pure bf16,
before sharding: arXiv 1910.02054 section 3; estimators.md 2.1, measured with fake tensors.
"""

from __future__ import annotations

from dataclasses import dataclass

from workbench.describe import Strategy, Workload
from workbench.estimate.stages import Elements

# Optimizer -> bytes of state per trained element when its states are fp32; "half" ones follow the
# parameter's type. 8-bit: two bytes and two fp32 block maxima per 256 elements (bitsandbytes).
_STATES = {
    "adamw": 8.0,
    "adamw-fused": 8.0,
    "adamw-8bit": 2 + 8 / 256,
    "adamw-4bit": 1 + 8 / 128,
    "paged-adamw": 0.0,  # unified memory outside the allocator; pages leave the card under pressure
    "paged-adamw-8bit": 0.0,
    "adafactor": 0.01,  # one row and one column of factors per matrix
    "sgd": 0.0,
    "sgd-momentum": 4.0,
    "lion": 4.0,
    "lion-8bit": 1 + 4 / 256,
    "muon": 4.0,
}


def optimizer_bytes(optimizer: str) -> float:
    """Bytes of optimizer states per trained fp32 weight.

    >>> optimizer_bytes("adamw"), optimizer_bytes("sgd-momentum")
    (8.0, 4.0)
    """
    return _STATES[optimizer]


_HALVED = {"adamw", "adamw-fused", "sgd-momentum", "lion", "muon"}
# fp32 (or weight-typed) scratch per trained element during step(): torch's foreach kernels make
# one list of temporaries; fused, 8-bit and plain SGD do not.
_FOREACH = {"adamw": 1, "sgd-momentum": 0, "lion": 1, "adafactor": 1}
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
class States:
    """Bytes of the states of one rank."""

    weights: int
    """Trained weights, frozen base and adapters."""
    master: int
    """Master copy."""
    optimizer: int
    """Optimizer states."""
    gradients: int
    """All gradients, sharded as the strategy does."""
    step: int
    """Scratch of the optimizer's step."""
    gradients_whole: int
    """All gradients, not sharded over data-parallel ranks."""


def widths(workload: Workload, strategy: Strategy) -> Widths:
    """Bytes per element for this precision, implementation and strategy."""
    mixed = workload.precision in {"bf16", "fp16", "fp8"}
    pure = workload.precision == "bf16-pure"
    compute = 2 if mixed or pure else 4
    separate = workload.kernels.master_copy
    if separate is None:
        separate = mixed and strategy.zero_stage is not None
    weight = 2 if pure or (mixed and separate) else 4
    adapter = workload.adapter_bytes or (2 if pure else 4)
    frozen = compute if workload.lora_rank else weight
    return Widths(
        weight=weight,
        compute=compute,
        gradient=workload.kernels.gradient_bytes or weight,
        master=4 if separate and not workload.lora_rank else 0,
        adapter=adapter,
        frozen=frozen,
        quantized=_QUANTIZED[workload.quantization] or frozen,
    )


def shards(strategy: Strategy) -> dict[str, int]:
    """Ranks over which weights, gradients and optimizer states are spread."""
    ranks = strategy.shard_ranks
    stage = strategy.zero_stage
    fsdp = stage is None and ranks > 1
    return {
        "weights": ranks if fsdp or stage == 3 else 1,
        "gradients": ranks if fsdp or stage in {2, 3} else 1,
        "optimizer": ranks if fsdp or stage is not None else 1,
    }


def states(workload: Workload, strategy: Strategy, elements: Elements) -> States:
    """Bytes of weights, master copy, gradients, optimizer states and step scratch on one rank."""
    width = widths(workload, strategy)
    spread = shards(strategy)
    per_state = _STATES[workload.optimizer]
    if width.weight == 2 and not width.master and workload.optimizer in _HALVED:
        per_state /= 2
    offloaded = set(strategy.offload)
    base = elements.block + elements.root
    if workload.optimizer == "muon":  # matrices only; embedding and head get AdamW's two moments
        root_share = elements.root / max(1, base + elements.experts)
        per_state *= 1 + root_share
    expert_ways = expert_ways_of(strategy)
    frozen = elements.frozen_linear * width.quantized + elements.frozen_other * width.frozen
    if workload.quantized_head and width.quantized < width.frozen:
        frozen -= elements.head_matrix * (width.frozen - width.quantized)
    adapter_optimizer = _adapter_states(workload, width)

    def spread_bytes(name: str, per_element: float, adapter: float, whole: float = 0) -> int:
        ways = spread[name]
        experts = elements.experts / max(1, ways // expert_ways if ways > 1 else 1)
        return int(
            (base / ways + experts) * per_element
            + elements.adapters / ways * adapter
            + whole / ways
        )

    weights = spread_bytes("weights", width.weight, width.adapter, frozen)
    gradients = spread_bytes("gradients", width.gradient, width.adapter)
    whole = int(
        (base + elements.experts) * max(width.gradient, width.weight)
        + elements.adapters * width.adapter
    )
    on_host = "optimizer" in offloaded
    unsplit = _unsplit_gradient(workload, strategy, elements) / spread["gradients"]
    gradients += int(unsplit * width.gradient)
    scratch = _step_scratch(workload, strategy, elements, width)
    if scratch and not width.master:
        scratch += int(_FOREACH.get(workload.optimizer, 0) * unsplit * width.weight)
    return States(
        weights=0 if "parameters" in offloaded else weights,
        master=0 if on_host else spread_bytes("optimizer", width.master, 0),
        optimizer=0 if on_host else spread_bytes("optimizer", per_state, adapter_optimizer),
        gradients=gradients,
        step=0 if on_host else scratch,
        gradients_whole=whole,
    )


def _unsplit_gradient(workload: Workload, strategy: Strategy, elements: Elements) -> int:
    """Elements by which torch's sequence parallelism leaves the embedding's gradient whole."""
    split = strategy.tp > 1 and strategy.sequence_parallel and workload.kernels.gathered_inputs
    if not split or workload.lora_rank:
        return 0
    return max(0, elements.root - elements.head_matrix) * (strategy.tp - 1)


def expert_ways_of(strategy: Strategy) -> int:
    """How much smaller the data-parallel group of the experts is."""
    return max(1, strategy.ep * strategy.expert_tp // strategy.tp) if strategy.ep > 1 else 1


def _adapter_states(workload: Workload, width: Widths) -> float:
    per_state = _STATES[workload.optimizer]
    return per_state / 2 if width.adapter == 2 and workload.optimizer in _HALVED else per_state


def _step_scratch(workload: Workload, strategy: Strategy, elements: Elements, width: Widths) -> int:
    ways = shards(strategy)["optimizer"]
    trained = (elements.block + elements.root + elements.experts) / ways
    lists = _FOREACH.get(workload.optimizer, 0)
    if width.master:
        if width.gradient != 2:
            return 0  # gradients are fp32 already, the fused Adam works in place (Megatron)
        if strategy.zero_stage == 3:  # flat already, and by sub-groups of 1e9 elements
            return int((4 + 4 * lists) * min(trained, 1e9))
        # A flat copy in low precision, then one in fp32; the optimizer's lists come later.
        return int(max(6, 4 + 4 * lists) * trained)
    if workload.kernels.optimizer_in_backward:
        return 0
    return int(lists * (trained * width.weight + elements.adapters / ways * width.adapter))
