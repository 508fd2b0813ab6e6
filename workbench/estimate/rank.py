"""One rank of one pipeline stage: its weights, states, buffers, blocks and loss, in bytes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from workbench.describe import Strategy, Workload
from workbench.estimate.activations import StageBlocks, stage_blocks
from workbench.estimate.communication import Buffers, buffers
from workbench.estimate.context import RankContext, rank_context
from workbench.estimate.elements import Elements, rank_elements
from workbench.estimate.loss import LossMemory, loss_memory
from workbench.estimate.stages import Stage, stages
from workbench.estimate.states import States, states


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """Everything the peaks are made of, for one micro-batch where not said otherwise."""

    context: RankContext
    """What all ranks share."""
    stage: Stage
    """The pipeline stage it belongs to."""
    elements: Elements
    """Weights in elements."""
    states: States
    """Weights, gradients, optimizer states."""
    buffers: Buffers
    """Communication buffers by phase."""
    blocks: StageBlocks
    """What its blocks keep for backward."""
    loss: LossMemory
    """Logits and loss; zeros on a stage without head."""

    @property
    def waiting(self) -> float:
        """Pipeline: received inputs and results that wait for their backward."""
        if self.context.strategy.pp == 1:
            return 0.0
        return (1 + self.stage.in_flight) * self.blocks.largest.boundary

    @property
    def outside(self) -> float:
        """Activations outside the blocks at the end of forward.

        The final norm's inputs, what the head keeps, the embedding's dropout mask, what waits.
        """
        context, boundary, kept = self.context, self.blocks.largest.boundary, 0.0
        if self.stage.head and context.model.traced is None:
            kept += (1 + context.upcasts_norms + context.trains) * boundary
        if self.stage.embedding and context.model.dropout:
            kept += boundary / 2
        return self.waiting + kept

    @property
    def casts(self) -> float:
        """Autocast's low-precision copy of the head."""
        return 2.0 * self.elements.head_matrix * self.context.autocast

    @property
    def dequantised(self) -> float:
        """One quantized weight turned back: in its own type and in the compute type."""
        quantized = self.context.workload.quantization != "none"
        return 2.0 * self.context.width.compute * self.elements.largest_linear * quantized


def ranks_of(workload: Workload, strategy: Strategy) -> tuple[Rank, ...]:
    """One rank of each pipeline stage; stages of equal content are worked out once."""
    context = rank_context(workload, strategy)
    nothing = LossMemory(forward=0, backward=0, kept=0)
    made: dict[object, Rank] = {}
    ranks: list[Rank] = []
    for stage in stages(context.model, strategy, workload.accumulate):
        known = made.get(stage.content)
        if known is None:
            elements = rank_elements(context, stage)
            made[stage.content] = known = Rank(
                context=context,
                stage=stage,
                elements=elements,
                states=states(context, elements),
                buffers=buffers(context, stage, elements),
                blocks=stage_blocks(context, stage),
                loss=loss_memory(context) if stage.head else nothing,
            )
        ranks.append(known if known.stage is stage else replace(known, stage=stage))
    return tuple(ranks)
