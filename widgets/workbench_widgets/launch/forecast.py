"""One line on what a launch would need: memory, step, hours, dollars, tokens."""

from __future__ import annotations

import workbench as wb
from workbench.launching.prepare.epoch import epoch_of
from workbench.units import format_bytes, format_count, format_seconds, format_usd


def forecast(request: wb.Request) -> str:
    """What is known of it; "" = nothing."""
    step, work, parts = request.predicted_time, request.workload, list[str]()
    if request.predicted is not None:
        parts.append(f"{format_bytes(request.predicted.total_bytes)} a rank")
    if step is not None:
        parts.append(f"{format_seconds(step.step_seconds)} a step")
    steps, seconds = request.steps_total, request.seconds_total
    if step is not None and steps is not None:
        seconds = min(seconds or float("inf"), steps * step.step_seconds)
    if seconds is not None:
        parts.append(f"{format_seconds(seconds)} in all")
    if request.predicted_usd is not None:
        parts.append(format_usd(request.predicted_usd))
    if work is not None:
        batch = work.micro_batch * work.accumulate * request.strategy.data_ranks
        unit = "tokens" if work.counts_tokens else "samples"
        tokens = f"{format_count(batch * work.seq_len)} {unit} a step"
        if steps is not None:
            tokens += f", {format_count(batch * work.seq_len * steps)} in all"
        parts.append(tokens)
    epoch = epoch_of(request)
    if epoch is not None:
        parts.append(str(epoch))
    return " · ".join(parts)
