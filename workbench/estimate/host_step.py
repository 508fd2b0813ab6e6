"""The step time on this host: by the catalog's closed form on a GPU, by measurement on a CPU."""

from __future__ import annotations

import statistics
from dataclasses import replace

from workbench.describe import Cluster, Conditions, Model, Strategy, Workload
from workbench.estimate.calibration import Calibration
from workbench.estimate.calibration_rows import MeasuredStep
from workbench.estimate.flops import attention_flops, block_products, head_product, model_flops
from workbench.estimate.host_rates import (
    TENSORS,
    HostRates,
    Work,
    backward_work,
    forward_work,
    host_rates,
    messages,
)
from workbench.estimate.measured_time import measured_on_cpu
from workbench.estimate.memory import check_layout
from workbench.estimate.step_time import step_time
from workbench.estimate.timing import COMMUNICATION, StepTime

MEASURED, EXTRAPOLATED = (0.87, 1.15), (0.75, 1.35)
"""Range around the estimate: for numbers of processes that were measured, and for others."""
CREDIBLE = (0.5, 2.0)
"""Measured over closed form of the recipe's steps on a GPU; beyond, something else is wrong."""
RECIPE_WIDTHS = 12.0
"""Widths that pointwise operations pass over in the recipe's block: 8 of the residual stream, 4 of
the MLP; another shape is scaled by its own."""


def predict_step(
    workload: Workload, strategy: Strategy, cluster: Cluster, calibration: Calibration | None
) -> StepTime | None:
    """Seconds of one optimizer step in named parts; None where nothing is known to say it from.

    Args:
        workload: What is trained. On a CPU a dense decoder in fp32, all of whose weights train.
        strategy: How it is spread. On a CPU alone or replicated (DDP).
        cluster: Where. A GPU of the catalog needs no calibration, a CPU does.
        calibration: Of this very host, or None; one of another host is left out of account.

    Raises:
        UsageError: an impossible layout.
    """
    calibration_here = (
        calibration if calibration is not None and calibration.fits(cluster) else None
    )
    if cluster.accelerator is not None:
        return step_time(
            workload, strategy, cluster, calibration_here and _as_here(calibration_here, cluster)
        )
    if workload.model.measured is not None:
        return measured_on_cpu(workload, strategy, cluster)
    if (
        calibration_here is None
        or calibration_here.device != "cpu"
        or not is_covered(workload, strategy)
    ):
        return None
    check_layout(workload, strategy)
    rates = host_rates(calibration_here, strategy.world_size)
    return None if rates is None else _on_cpu(workload, strategy, rates, calibration_here)


def _as_here(calibration: Calibration, cluster: Cluster) -> Conditions:
    """The measured shares, and how the recipe's real steps compare with the closed form on them."""
    conditions = calibration.conditions()
    ratios: list[float] = []
    for step in calibration.steps:
        if step.processes in {1, len(cluster.gpus)}:
            strategy = Strategy(name="ddp", dp_replicate=step.processes)
            closed = step_time(recipe_workload(step), strategy, cluster, conditions)
            ratios.append(step.step_seconds / closed.step_seconds)
    if not ratios or not CREDIBLE[0] <= statistics.median(ratios) <= CREDIBLE[1]:
        return conditions
    return replace(conditions, measured_ratio=statistics.geometric_mean(ratios))


def recipe_workload(step: MeasuredStep) -> Workload:
    """What a measured step trained."""
    model = Model(
        name=f"gpt, {step.layers} layers, {step.hidden} wide",
        layers=step.layers,
        hidden=step.hidden,
        heads=step.heads,
        mlp_hidden=4 * step.hidden,
        vocab=256,
        gated_mlp=False,
        norm="rmsnorm-plain",
    )
    return Workload(
        model=model,
        seq_len=step.seq_len,
        micro_batch=step.micro_batch,
        precision=step.precision,
        optimizer="adamw-fused",
    )


def is_covered(workload: Workload, strategy: Strategy) -> bool:
    """Whether a calibration of a CPU tells the step time: its real steps are of this kind."""
    model = workload.model
    dense = model.kind == "decoder" and not model.experts and model.traced is None
    plain = workload.precision == "fp32" and not workload.lora_rank and not strategy.offload
    replicated = strategy.world_size == strategy.dp_replicate and strategy.recompute == "none"
    return dense and plain and replicated and strategy.ddp.comm_hook is None


def _work(workload: Workload, strategy: Strategy) -> Work:
    model = workload.model
    products = block_products(workload, strategy, moe=False)
    head = head_product(workload, 1, 1)
    widths = (8.0 * model.hidden + model.mlp_hidden * (2 if model.gated_mlp else 1)) / RECIPE_WIDTHS
    return Work(
        product_flops=model.layers * sum(product.flops for product in products) + head.flops,
        weight_bytes=4.0
        * (model.layers * sum(product.k * product.n for product in products) + head.k * head.n),
        attention_flops=3.5 * model.layers * attention_flops(workload),
        elements=float(model.layers * workload.tokens * widths),
        blocks=model.layers,
        parameters=float(model.parameters),
    )


def _on_cpu(
    workload: Workload, strategy: Strategy, rates: HostRates, calibration: Calibration
) -> StepTime:
    work, count, ranks = _work(workload, strategy), workload.accumulate, strategy.world_size
    passes = _passes(work, rates)
    parts = {name: count * seconds for name, seconds in passes.items()}
    parameter, tensor = rates.optimizer_seconds
    parts["optimizer"] = parameter * work.parameters + tensor * (TENSORS * work.blocks + 2)
    if ranks > 1:
        sent = 4 * work.parameters
        exchange = messages(sent) * rates.message_seconds + sent * rates.byte_seconds
        parts[f"{COMMUNICATION}: gradients"] = rates.exposed * exchange
        # only the last micro-batch waits: before it nothing is exchanged
        parts[f"{COMMUNICATION}: slowest rank"] = rates.straggling * sum(passes.values())
    flops = sum(model_flops(workload).values()) * count * ranks
    low, high = MEASURED if rates.measured else EXTRAPOLATED
    return StepTime(
        parts={name: seconds for name, seconds in parts.items() if seconds > 0},
        low=low,
        high=high,
        gpus=ranks,
        tokens=workload.tokens_per_step(ranks),
        model_flops=flops,
        hardware_flops=flops,
        peak_flops=None,
        assumptions=_assumptions(workload, strategy, rates, calibration),
        sources=("real steps of the embedded recipe on this host: compare/probes/steps.py",),
    )


def _passes(work: Work, rates: HostRates) -> dict[str, float]:
    """Forward and backward of one micro-batch, by what takes the time."""
    forward, backward = rates.forward, rates.backward
    first, second = forward_work(rates, work), backward_work(rates, work)
    matmul, attention, weights = (
        forward.factor * forward_seconds + backward.factor * backward_seconds
        for forward_seconds, backward_seconds in zip(first, second, strict=True)
    )
    return {
        "matmul": matmul + weights,
        "attention": attention,
        "memory-bound operations": work.elements
        * (forward.element_seconds + backward.element_seconds),
        "kernel launches": work.blocks * (forward.block_seconds + backward.block_seconds),
    }


def _assumptions(
    workload: Workload, strategy: Strategy, rates: HostRates, calibration: Calibration
) -> tuple[str, ...]:
    ranks = strategy.world_size
    sentences = [calibration.source, "pointwise operations as in the embedded recipe's block"]
    if not rates.measured:
        sentences.append(f"{ranks} processes were not measured: extrapolated by cores")
    if workload.optimizer not in {"adamw", "adamw-fused"}:
        sentences.append(f"{workload.optimizer} is timed as fused AdamW")
    if ranks > calibration.cores:
        sentences.append(f"{ranks} processes share {calibration.cores} cores")
    return tuple(sentences)
