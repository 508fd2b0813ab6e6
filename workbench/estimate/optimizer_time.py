"""The optimizer's step: memory traffic of the states, or the host's work when they live there."""

from __future__ import annotations

from workbench.describe import Workload
from workbench.estimate.context import StateWidths
from workbench.estimate.elements import Elements
from workbench.estimate.fitted import fitted
from workbench.estimate.rank import Rank
from workbench.estimate.rates import Machine

# Bytes read and written per trained element with fp32 states: weight, gradient, two moments.
TRAFFIC = {
    "adamw": 28.0 + 30.0,  # foreach: torch makes and reads whole lists of temporaries
    "adamw-fused": 28.0,
    "adamw-8bit": 16.0,
    "adamw-4bit": 14.0,
    "paged-adamw": 28.0,
    "paged-adamw-8bit": 16.0,
    "adafactor": 40.0,
    "sgd": 12.0,
    "sgd-momentum": 20.0,
    "lion": 20.0,
    "lion-8bit": 14.0,
    "muon": 28.0,
}
CLIP = 16.0
"""Bytes per element of gradient norm, clipping and zeroing."""


def optimizer_seconds(rank: Rank, gpu: Machine) -> dict[str, float]:
    """Seconds of one optimizer step on one rank, by part."""
    context, elements = rank.context, rank.elements
    workload, strategy = context.workload, context.strategy
    width, ways = context.width, context.ways.optimizer
    expert_ways = max(1, ways // strategy.expert_ways)
    own_elements = (elements.block + elements.root + elements.adapters) / ways
    own_elements += elements.experts / expert_ways
    products = 0.0
    if workload.optimizer == "muon":
        products = _orthogonalise(workload, elements, gpu) / ways
    if "optimizer" in strategy.offload:  # a host takes at least as long for products as its GPU
        traffic = own_elements * 2 * width.compute / gpu.host_bytes
        return {
            "optimizer": fitted("step_seconds") + own_elements / fitted("host_elements") + products,
            "offload of the optimizer": traffic,
        }
    per_element = TRAFFIC[workload.optimizer] + CLIP
    if width.weight == 2 and not width.master:
        per_element /= 2
    seconds = own_elements * per_element / gpu.memory_bytes + products
    parts = _paging(workload, own_elements, width, gpu)
    return {"optimizer": fitted("step_seconds") + seconds, **parts}


def _paging(
    workload: Workload, own_elements: float, width: StateWidths, gpu: Machine
) -> dict[str, float]:
    """Paged optimizers keep fp32 (or 8-bit) states in unified memory.

    What the card has no room for comes over PCIe and goes back, both ways at once, page by page.
    """
    if not workload.optimizer.startswith("paged"):
        return {}
    states = own_elements * (2.0 if workload.optimizer.endswith("8bit") else 8.0)
    room = max(0.0, gpu.card_bytes - fitted("paged_bytes") - own_elements * width.weight)
    return {
        "offload of the optimizer": max(0.0, states - room)
        / (fitted("paged_share") * gpu.host_bytes)
    }


def _orthogonalise(workload: Workload, elements: Elements, gpu: Machine) -> float:
    """Muon's five Newton-Schulz steps: three products each, of the matrix's smaller side."""
    side = workload.model.hidden
    return (
        5
        * 3
        * 2.0
        * side
        * (elements.block + elements.experts)
        / (fitted("muon") * gpu.plain_flops)
    )
