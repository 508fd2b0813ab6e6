"""Bytes of the model's states: weights, master copy, gradients, optimizer, frozen base, adapters.

arXiv 1910.02054 section 3; measured with fake tensors.
"""

from __future__ import annotations

from dataclasses import dataclass

from workbench.estimate.context import RankContext
from workbench.estimate.elements import Elements

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
_FOREACH = {"sgd-momentum": 0, "lion": 1, "adafactor": 1}


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
    gradients_unsharded: int
    """All gradients, not sharded over data-parallel ranks."""
    on_host: int
    """What is offloaded: weights, master copy, optimizer states."""


def states(context: RankContext, elements: Elements) -> States:
    """Bytes of weights, master copy, gradients, optimizer states and step scratch on one rank."""
    workload, strategy = context.workload, context.strategy
    width, ways = context.width, context.ways
    base = elements.block + elements.root
    per_state = per_adapter = _STATES[workload.optimizer]
    halved = workload.optimizer in _HALVED
    if width.weight == 2 and not width.master and halved:
        per_state /= 2
    if workload.optimizer == "muon":  # matrices only; embedding and head get AdamW's two moments
        per_state *= 1 + elements.root / max(1, base + elements.experts)
    if width.adapter == 2 and halved:
        per_adapter /= 2
    expert_ways = strategy.expert_ways
    quantized = width.quantized < width.frozen
    other = 4 if quantized and context.kernels.fp32_unquantized else width.frozen
    frozen = elements.frozen_linear * width.quantized + elements.frozen_other * other
    if workload.quantized_head and quantized:
        frozen -= elements.head_matrix * (other - width.quantized)
    measured = context.model.measured
    if measured is not None and measured.optimizer == workload.optimizer:
        per_state = measured.optimizer_bytes
    if measured is not None and measured.precision == workload.precision:
        frozen = float(measured.frozen_bytes)
    frozen_experts = elements.frozen_experts * width.quantized  # a part of `frozen`

    def sharded(among: int, per_element: float, adapter: float, frozen_bytes: float = 0) -> int:
        of_experts = max(1, among // expert_ways if among > 1 else 1)
        experts_part = frozen_experts if frozen_bytes else 0.0
        return int(
            (base / among + elements.experts / of_experts) * per_element
            + elements.adapters / among * adapter
            + (frozen_bytes - experts_part) / among
            + experts_part / of_experts
        )

    flat = float(_frozen_gradient_bytes(context, elements))
    unsplit = _unsplit_gradient(context, elements) / ways.gradients
    scratch = _step_scratch(context, elements)
    if scratch and not width.master:
        scratch += int(_foreach_lists(context) * unsplit * width.weight)
    weights = sharded(ways.weights, width.weight, width.adapter, frozen)
    master = sharded(ways.optimizer, width.master, 0)
    optimizer = sharded(ways.optimizer, per_state, per_adapter)
    weights_away = "parameters" in strategy.offload
    optimizer_away = "optimizer" in strategy.offload
    return States(
        weights=0 if weights_away else weights,
        master=0 if optimizer_away else master,
        optimizer=0 if optimizer_away else optimizer,
        on_host=weights_away * weights + optimizer_away * (master + optimizer),
        gradients=sharded(ways.gradients, width.gradient, width.adapter, flat)
        + int(unsplit * width.gradient),
        step=0 if optimizer_away else scratch,
        gradients_unsharded=int(
            (base + elements.experts) * max(width.gradient, width.weight)
            + elements.adapters * width.adapter
            + flat
        ),
    )


def _frozen_gradient_bytes(context: RankContext, elements: Elements) -> int:
    """Gradients that frozen weights get because they share a flat parameter with adapters."""
    if not context.kernels.frozen_gradients or context.trains or not context.is_fsdp:
        return 0
    return context.width.frozen * elements.frozen_linear


def _unsplit_gradient(context: RankContext, elements: Elements) -> int:
    """Elements by which torch's sequence parallelism leaves the embedding's gradient whole."""
    strategy = context.strategy
    split = strategy.tp > 1 and strategy.sequence_parallel and context.kernels.gathered_inputs
    if not split or not context.trains:
        return 0
    return max(0, elements.root - elements.head_matrix) * (strategy.tp - 1)


def _foreach_lists(context: RankContext) -> int:
    """Lists of temporaries, each as long as the trained weights, during `step()`."""
    if context.workload.optimizer == "adamw":
        return context.kernels.foreach_lists
    return _FOREACH.get(context.workload.optimizer, 0)


def _step_scratch(context: RankContext, elements: Elements) -> int:
    among, width = context.ways.optimizer, context.width
    trained = (elements.block + elements.root + elements.experts) / among
    lists = _foreach_lists(context)
    if width.master:
        if width.gradient != 2:
            return 0  # gradients are fp32 already, the fused Adam works in place (Megatron)
        if context.strategy.zero_stage == 3:  # flat already, and by sub-groups of 1e9 elements
            return int((4 + 4 * lists) * min(trained, 1e9))
        # A flat copy in low precision, then one in fp32; the optimizer's lists come later.
        copies = 6 if context.kernels.flat_gradients else 4
        return int(max(copies, 4 + 4 * lists) * trained)
    if context.kernels.optimizer_in_backward:
        return 0
    return int(lists * (trained * width.weight + elements.adapters / among * width.adapter))
