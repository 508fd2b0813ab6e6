"""One rank of one pipeline stage: its weights, states, buffers, blocks and loss, in bytes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from workbench.describe import Strategy, Workload
from workbench.estimate.activations import StageBlocks, stage_blocks
from workbench.estimate.communication import Buffers, buffers
from workbench.estimate.context import RankContext, rank_context
from workbench.estimate.elements import Elements, rank_elements
from workbench.estimate.loss import LossMemory, loss_memory
from workbench.estimate.stages import Stage, stages
from workbench.estimate.states import States, states


@dataclass(frozen=True, kw_only=True)  # without slots, so that its parts are worked out once
class Rank:
    """What one rank holds, each part for one micro-batch where not said otherwise."""

    context: RankContext
    """What all ranks share."""
    stage: Stage
    """The pipeline stage it belongs to."""

    @cached_property
    def elements(self) -> Elements:
        """Weights in elements."""
        return rank_elements(self.context, self.stage)

    @cached_property
    def states(self) -> States:
        """Weights, gradients, optimizer states."""
        return states(self.context, self.elements)

    @cached_property
    def buffers(self) -> Buffers:
        """Communication buffers by phase."""
        return buffers(self.context, self.stage, self.elements)

    @cached_property
    def blocks(self) -> StageBlocks:
        """What its blocks keep for backward."""
        return stage_blocks(self.context, self.stage)

    @cached_property
    def loss(self) -> LossMemory:
        """Logits and loss; zeros on a stage without head."""
        return loss_memory(self.context) if self.stage.head else LossMemory()

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
        context, boundary, saved = self.context, self.blocks.largest.boundary, 0.0
        if self.stage.head and context.model.traced is None:
            saved += (1 + context.upcasts_norms + context.trains) * boundary
        if self.stage.embedding and context.model.dropout:
            saved += boundary / 2
        return self.waiting + saved

    @property
    def casts(self) -> float:
        """Autocast's low-precision copy of the head."""
        return 2.0 * self.elements.head_matrix * self.context.autocast

    @property
    def earlier_inputs(self) -> float:
        """Inputs of the last micro-batch's 4-bit linears, which nothing has let go of."""
        context, stage = self.context, self.stage
        kernels, model = context.kernels, context.model
        if not (kernels.earlier_inputs and kernels.quantized_inputs and context.four_bits):
            return 0.0
        if context.strategy.recompute == "full" or model.traced is not None:
            return 0.0  # a block's graph is gone once its backward is through
        norms = 1 if model.parallel_block and model.norms_per_block == 1 else 2
        width = stage.layers * (norms * model.hidden + model.attention_width)
        width += stage.dense * model.mlp_hidden
        width += stage.moe * model.experts_per_token * (model.hidden + model.expert_hidden)
        width += model.hidden * (stage.head and context.workload.quantized_head)
        return context.width.compute * context.tokens * width / context.strategy.tp

    @property
    def dequantised(self) -> float:
        """One quantized weight turned back: in its own type and in the compute type."""
        quantized = self.context.workload.quantization != "none"
        return 2.0 * self.context.width.compute * self.elements.largest_linear * quantized


def ranks_of(workload: Workload, strategy: Strategy) -> tuple[Rank, ...]:
    """One rank of each pipeline stage.

    Raises:
        UsageError: more stages than blocks, or virtual stages that do not fit.
    """
    context = rank_context(workload, strategy)
    return tuple(
        Rank(context=context, stage=stage)
        for stage in stages(workload.model, strategy, workload.accumulate, workload.trained_layers)
    )
