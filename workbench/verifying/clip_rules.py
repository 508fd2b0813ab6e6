"""When gradients are clipped: after they are exchanged, and after a scaler's factor is out."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from workbench.verifying.trace import Step, Trace
from workbench.verifying.verdict import Verdict

_TOLERANCE = 1e-3  # of a norm: what no rounding of an exchanged gradient explains


def before_exchange(trace: Trace, _reference: Trace | None) -> Iterator[Verdict]:
    """The ranks clip other gradients, which they hold before the exchange."""
    for number in range(trace.steps):
        steps = trace.at(number)
        for place, clips in enumerate(zip(*(step.clips for step in steps), strict=False)):
            norms = [float(clip["norm"]) for clip in clips]
            alike = len({(clip["kind"], clip["elements"]) for clip in clips}) == 1
            if not all(map(math.isfinite, norms)):
                continue  # a scaler looks for its factor, and skips the step
            if not alike or max(norms) - min(norms) <= _TOLERANCE * max(norms):
                continue
            cause, move = _why_unequal(trace, steps[0], place)
            yield Verdict(
                kind="clipped-before-exchange",
                part="gradients",
                step=steps[0].step,
                what=f"the gradients that clip_grad_{clips[0]['kind']}_ is given",
                evidence=f"Their norm is {', '.join(f'{norm:.4g}' for norm in norms)} on ranks 0 "
                f"to {len(norms) - 1}.",
                bound="After the exchange the ranks hold the same gradients, and so one norm; "
                f"rounding explains {_TOLERANCE:.0e} of it.",
                cause=cause,
                next=move,
            )
            return


def _why_unequal(trace: Trace, step: Step, place: int) -> tuple[str, str]:
    if "FullyShardedDataParallel" in trace.ranks[0].wrappers:
        return (
            (
                "torch.nn.utils.clip_grad_norm_ sees the shard of its rank alone, so each rank "
                "scales its shard by a factor of its own."
            ),
            "Call clip_grad_norm_ of the FSDP model, or of the Accelerator.",
        )
    if len(step.clips) > 1 and place < len(step.clips) - 1:
        return (
            (
                f"It clips each of {len(step.clips)} micro-batches, and the exchange comes with "
                "the last one."
            ),
            "Clip once, after the last backward pass of the step.",
        )
    return (
        (
            "It clips before the ranks exchange their gradients: each rank's are scaled by a "
            "factor of its own, and the mean is no longer that of the batch."
        ),
        "Clip after the exchange (DDP: after backward; by hand: after all_reduce).",
    )


def before_unscale(trace: Trace, _reference: Trace | None) -> Iterator[Verdict]:
    """Gradients are clipped while a gradient scaler's factor is in them."""
    for rank in trace.ranks:
        for step in rank.steps:
            scaled = next((clip for clip in step.clips if float(clip["scale"]) != 1.0), None)
            if scaled is not None:
                yield _scaled(rank.rank, step.step, scaled)
                return


def _scaled(rank: int, step: int, clip: Mapping[str, Any]) -> Verdict:
    norm, scale = float(clip["norm"]), float(clip["scale"])
    return Verdict(
        kind="clipped-before-unscale",
        part="gradients",
        step=step,
        rank=rank,
        what=f"the gradients that clip_grad_{clip['kind']}_ is given",
        evidence=f"Their norm is {norm:.4g}, with the scaler's factor of {scale:g} in it; without "
        f"it is {norm / scale:.4g}.",
        bound="The limit is one of gradients without the factor.",
        cause="clip_grad_norm_ is called without scaler.unscale_(optimizer) before: nearly each "
        f"step is clipped, to a norm {scale:g} times below the limit.",
        next="Call scaler.unscale_(optimizer) first, then clip, then scaler.step(optimizer).",
    )


COPY_RULES: Sequence[Any] = (before_exchange,)
"""Of ranks that each hold the whole model."""
RULES: Sequence[Any] = (before_unscale,)
