"""Logits and loss: what they hold at the end of forward and in their own backward.

transformers' causal loss: logits in low precision (2 T V), an fp32 copy (4), log-softmax (4); in
backward the saved log-softmax and two fp32 gradients (12 T V). Counted with fake tensors.
"""

from __future__ import annotations

from dataclasses import dataclass

from workbench.estimate.context import RankContext


@dataclass(frozen=True, slots=True, kw_only=True)
class LossMemory:
    """Bytes of the head's results on one rank of the stage that has the head."""

    forward: float = 0.0
    """At the end of forward."""
    backward: float = 0.0
    """At the worst moment of the loss's backward."""
    returned_logits: float = 0.0
    """What the caller keeps until the end of the step (`out.logits`)."""
    saved: float = 0.0
    """What one micro-batch keeps for the loss's backward: held for all that are in flight."""


def loss_memory(context: RankContext) -> LossMemory:
    """Bytes of logits, their copies and their gradients for one micro-batch."""
    workload, model, kernels = context.workload, context.model, context.kernels
    c, tokens, tp = context.width.compute, context.tokens, context.strategy.tp
    if model.one_answer:
        size = workload.micro_batch * model.logit_width
        return LossMemory(forward=10.0 * size, backward=12.0 * size)
    logits = tokens * model.vocab / tp
    outside = 2.0 * c * tokens * model.hidden  # hidden states of the head and their gradient
    if workload.loss == "fused":
        chunk = max(1.0, tokens * model.hidden / model.vocab)  # Liger: chunk x V = about T x h
        piece = min(1.0, chunk / tokens) * logits
        trains_head = context.trains or "head" in workload.lora_targets
        gradient = c * model.vocab * model.hidden / tp * trains_head  # made in forward, kept
        in_forward = 14.0 * piece + gradient + outside
        return LossMemory(forward=in_forward, backward=outside + gradient)
    upcast = kernels.logits_fp32 or c == 4
    forward, backward = 2.0 * c, 3.0 * c
    if upcast:  # worked on in place, one copy is left: it becomes the gradient, then is cast back
        copies = kernels.logits_copies
        forward, backward = c % 4 + 4.0 * min(2, copies), max(4.0 * copies, 4.0 + c % 4)
    if kernels.compiled_loss:
        forward, backward, upcast = float(c), 2.0 * c, False
    if tp > 1 and kernels.gathered_inputs:
        backward *= 4 / 3  # torch's loss_parallel masks the gradient in a copy
    if workload.loss == "chunked":
        piece = logits / workload.loss_chunks
        head = 2 * c * model.vocab * model.hidden / tp if context.trains else 0
        return LossMemory(forward=forward * piece, backward=backward * piece + outside / 2 + head)
    if workload.loss == "chunked-output":
        chunk_width = 8.0 / workload.loss_chunks
        softmax = 0.0 if kernels.compiled else 4.0
        return LossMemory(
            forward=(c + softmax + chunk_width) * logits,
            backward=(2 * c + softmax + chunk_width) * logits,
        )
    returned = (4 if kernels.fp32_logits_returned else c) * logits if workload.keep_logits else 0.0
    # A quantized head becomes a matrix again, first in its own type, then in the compute type.
    dequantised = 2 * c * model.vocab * model.hidden if workload.quantized_head else 0
    return LossMemory(
        forward=forward * logits + dequantised,
        backward=backward * logits + dequantised + returned,
        returned_logits=returned,
        saved=(4 if upcast else c) * logits,
    )
