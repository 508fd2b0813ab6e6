"""One rank of one pipeline stage: its weights, states, buffers, blocks and loss, in bytes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from workbench.describe import Strategy, Workload
from workbench.estimate.activations import BlockMemory, block_memory, module_memory
from workbench.estimate.communication import Buffers, buffers
from workbench.estimate.inventory import uses_autocast
from workbench.estimate.loss import LossMemory, loss_memory
from workbench.estimate.stages import Elements, Stage, rank_elements
from workbench.estimate.states import States, Widths, states, widths


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """Everything the peaks are made of, for one micro-batch where not said otherwise."""

    stage: Stage
    """The pipeline stage it belongs to."""
    elements: Elements
    """Weights in elements."""
    width: Widths
    """Bytes per element of each state."""
    states: States
    """Weights, gradients, optimizer states."""
    buffers: Buffers
    """Communication buffers by phase."""
    block: BlockMemory
    """The largest block."""
    blocks: float
    """Bytes that all blocks keep for backward, recompute and offload taken into account."""
    loss: LossMemory
    """Logits and loss; zeros on a stage without head."""
    outside: float
    """Activations outside the blocks at the end of forward."""
    waiting: float
    """Pipeline: received inputs and results that wait for their backward."""
    casts: float
    """Autocast's low-precision copy of the head."""
    dequantised: float
    """One quantized weight turned back: in its own type and in the compute type."""

    @property
    def is_fsdp(self) -> bool:
        """Whether weights, gradients and states are sharded by FSDP."""
        return self.buffers.is_fsdp


def rank_of(workload: Workload, strategy: Strategy, stage: Stage) -> Rank:
    """Describe one rank of `stage`."""
    elements = rank_elements(workload, strategy, stage)
    width = widths(workload, strategy)
    largest, blocks = _blocks(workload, strategy, stage)
    nothing = LossMemory(forward=0, backward=0, kept=0)
    waiting = _waiting(strategy, stage, largest)
    quantized = workload.quantization != "none"
    return Rank(
        stage=stage,
        elements=elements,
        width=width,
        states=states(workload, strategy, elements),
        buffers=buffers(workload, strategy, stage, elements, width),
        block=largest,
        blocks=blocks,
        loss=loss_memory(workload, strategy) if stage.head else nothing,
        outside=waiting + _outside(workload, stage, largest),
        waiting=waiting,
        casts=2.0 * elements.head_matrix * uses_autocast(workload, strategy),
        dequantised=2.0 * width.compute * elements.largest_linear * quantized,
    )


def moved(rank: Rank, workload: Workload, strategy: Strategy, stage: Stage) -> Rank:
    """The rank of another stage of the same content: only its micro-batches in flight differ."""
    waiting = _waiting(strategy, stage, rank.block)
    outside = waiting + _outside(workload, stage, rank.block)
    return replace(rank, stage=stage, waiting=waiting, outside=outside)


def _waiting(strategy: Strategy, stage: Stage, block: BlockMemory) -> float:
    return (1 + stage.in_flight) * block.boundary if strategy.pp > 1 else 0.0


def _blocks(workload: Workload, strategy: Strategy, stage: Stage) -> tuple[BlockMemory, float]:
    """(the largest block, bytes that all blocks of the stage keep)."""
    if workload.model.traced is not None:
        return module_memory(workload, strategy)
    kinds = [(moe, n) for moe, n in ((False, stage.dense), (True, stage.moe)) if n]
    inventory = {moe: block_memory(workload, strategy, moe=moe) for moe, _ in kinds}
    largest = max(inventory.values(), key=lambda one: one.live + one.backward)
    kept = sum(n * inventory[moe].total for moe, n in kinds)
    if strategy.recompute == "full":
        boundaries = sum(n * inventory[moe].boundary for moe, n in kinds)
        count = strategy.recompute_layers
        share = 1.0 if count is None else min(1.0, count / stage.layers)
        kept = share * boundaries + (1 - share) * kept
    if "activations" in strategy.offload:
        kept = min(kept, 2 * largest.boundary)
    if workload.trained_layers is not None:  # nothing is kept below the first trained block
        kept *= min(1.0, workload.trained_layers / stage.layers)
    return largest, kept


def _outside(workload: Workload, stage: Stage, block: BlockMemory) -> float:
    """The final norm's inputs, what the head keeps, the embedding's dropout mask."""
    model, total = workload.model, 0.0
    if stage.head and model.traced is None:
        upcast = workload.kernels.norm == "upcast" and model.norm.startswith("rmsnorm")
        total += (1 + upcast + (not workload.lora_rank)) * block.boundary
    if stage.embedding and model.dropout:
        total += block.boundary / 2
    return total
