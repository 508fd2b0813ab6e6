"""Memory of a script whose step was measured: its own moments under another batch and layout.

What a probe saw at each moment of a step on one rank is split into what a layout shards (gradients,
the optimizer's scratch) and the rest, a line over the batch. The states come from `states`, what
the libraries of a layout hold besides from `communication`; so a measured step needs no formula of
its own for either.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from workbench.describe import Cluster, Workload
from workbench.describe.hardware import device_of
from workbench.describe.measured import Measured, Moment
from workbench.estimate.rank import Rank

_NEARLY_ALL = 0.95
"""Share of all gradients from which on a moment is the end of backward."""


def measured_moments(
    rank: Rank, measured: Measured, gradients: tuple[float, float]
) -> Iterator[tuple[str, dict[str, float]]]:
    """The measured moments on one rank of a layout, each with everything alive at it.

    Args:
        rank: The rank; the model has one stage.
        measured: The measured step.
        gradients: Bytes of all gradients at the end of backward, and of those that exist before it
            starts because a layout or an accumulation keeps them.
    """
    context, states = rank.context, rank.states
    everything, before = gradients
    scratch_share = (1 / context.ways.optimizer) * ("optimizer" not in context.strategy.offload)
    lists = 0.0 if measured.tensor_by_tensor else float(states.step)
    alive = {
        "parameters": float(states.weights),
        "master copy": float(states.master),
        "optimizer states": float(states.optimizer),
    }
    for moment in measured.moments:
        yield (
            _name(moment),
            alive
            | {
                "gradients": max(moment.gradients * everything, before),
                "activations: blocks": _activations(rank, measured, moment),
                "optimizer step": max(scratch_share * moment.scratch_bytes, lists)
                if moment.phase == "step"
                else 0.0,
                "communication buffers": _buffers(rank, moment),
            },
        )


def on_device(workload: Workload, where: Cluster | str) -> Workload:
    """The workload as the ranks of `where` step: a CPU rank as the CPU that it was measured on."""
    measured = workload.model.measured
    device = device_of(where)
    if measured is None or device != "cpu" or measured.device != "cpu":
        return workload
    traced = workload.model.traced
    assert traced is not None
    by_tensor = replace(traced, measured=replace(measured, tensor_by_tensor=True))
    return replace(workload, model=replace(workload.model, traced=by_tensor))


def _name(moment: Moment) -> str:
    if moment.phase == "step":
        return "optimizer step"
    if moment.phase == "forward":
        return "forward end"
    return "end of backward" if moment.gradients > _NEARLY_ALL else "block backward"


def _activations(rank: Rank, measured: Measured, moment: Moment) -> float:
    """Everything that is no state and no gradient, in this batch, precision and recompute."""
    context = rank.context
    scale = context.width.compute / measured.compute_bytes
    activations = scale * moment.other.at(context.workload.micro_batch)
    saved, boundaries, block = _kept_by_blocks(rank)
    if context.strategy.recompute != "full" or not saved:
        return activations
    growing = scale * moment.other.per_sample * context.workload.micro_batch
    reached = min(1.0, growing / saved)
    repeated_block = block if moment.phase == "backward" else 0.0
    return max(0.0, activations - reached * (saved - boundaries)) + repeated_block


def _kept_by_blocks(rank: Rank) -> tuple[float, float, float]:
    """Bytes that all blocks keep for backward, of their inputs, and of the one that keeps most."""
    traced, block = rank.context.model.traced, rank.blocks.largest
    if traced is None or not traced.boundary_bytes:
        return 0.0, 0.0, 0.0
    return traced.blocks * block.live, traced.blocks * block.boundary, block.live


def _buffers(rank: Rank, moment: Moment) -> float:
    if moment.phase == "step":
        return float(rank.buffers.step)
    if moment.phase == "forward":
        return float(rank.buffers.forward)
    return float(rank.buffers.backward if moment.gradients else rank.buffers.first_backward)
