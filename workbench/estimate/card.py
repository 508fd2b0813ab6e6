"""From allocated to the card: the allocator's slack, the framework's context, NCCL's buffers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from workbench.describe import Cluster, Strategy, Workload
from workbench.estimate.parts import COMMUNICATION, CONTEXT, SLACK, StageMemory
from workbench.units import MIB

# Resident memory of a CPU rank beyond its tensors, torch 2.13 CPU build and accelerate 1.15,
# 2026-11-21: 314 MiB for tests/scripts/accelerate_loop.py, 364 MiB for the recipe gpt. See it again
# with `workbench launch tests/scripts/accelerate_loop.py --wait && workbench show`.
CPU_CONTEXT_BYTES = 364 * MIB
# CUDA context + kernels 0.47-0.92 GiB (stas00/ml-engineering, A100, torch 2.1).
CUDA_CONTEXT_BYTES = 800 * MIB
# NCCL: +1.5 GiB with several communicators after the first collectives (ml-engineering); one
# communicator of one node holds a third of it.
NCCL_BYTES = 700 * MIB
# Share of what comes and goes within a step that the allocator cannot reuse.
_SLACK = {"one stream": 0.06, "deepspeed": 0.12, "several streams": 0.25, "expandable": 0.02, "variable length": 0.2}
_PERSISTENT = frozenset({"parameters", "master copy", "optimizer states"})


@dataclass(frozen=True, slots=True, kw_only=True)
class CardParts:
    """What is on the card beyond PyTorch's tensors."""

    parts: Mapping[str, int]
    card_bytes: int | None
    assumptions: tuple[str, ...]


def card_parts(
    workload: Workload, strategy: Strategy, where: Cluster | str, stage: StageMemory
) -> CardParts:
    """Slack, context and communication library for the fullest stage."""
    device = where if isinstance(where, str) else where.device
    if device == "cpu":
        return CardParts(
            parts={CONTEXT: CPU_CONTEXT_BYTES},
            card_bytes=None,
            assumptions=("context of a CPU rank: 364 MiB, not measured on this host",),
        )
    card = min((gpu.memory_bytes for gpu in where.gpus), default=None) if isinstance(where, Cluster) else None
    groups = sum(
        degree > 1
        for degree in (strategy.data_ranks, strategy.tp, strategy.pp, strategy.cp, strategy.ep)
    )
    parts = {SLACK: slack_bytes(workload, strategy, stage), CONTEXT: CUDA_CONTEXT_BYTES}
    if groups:
        parts[COMMUNICATION] = groups * NCCL_BYTES
    return CardParts(
        parts=parts,
        card_bytes=card,
        assumptions=(
            f"CUDA context {CUDA_CONTEXT_BYTES // MIB} MiB, NCCL {NCCL_BYTES // MIB} MiB per process group: typical, not "
            "measured on this host",
        ),
    )


def slack_bytes(workload: Workload, strategy: Strategy, stage: StageMemory) -> int:
    """Reserved minus allocated at the peak."""
    transient = sum(
        size for name, size in stage.peak.parts.items() if name not in _PERSISTENT
    )
    if workload.kernels.expandable_segments:
        share = _SLACK["expandable"]
    elif strategy.zero_stage is not None:
        share = _SLACK["deepspeed"]
    elif strategy.shard_ranks > 1:
        share = _SLACK["several streams"]
    else:
        share = _SLACK["one stream"]
    if workload.variable_length:
        share += _SLACK["variable length"]
    return round(share * transient)
