"""Beyond the allocator: context and NCCL on the card, and what offload needs of the host."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from workbench.describe import Cluster, Strategy, Workload
from workbench.describe.hardware import device_of
from workbench.describe.job import Job
from workbench.errors import UsageError
from workbench.estimate.parts import COMMUNICATION, CONTEXT, SAFETY, SLACK
from workbench.estimate.rank import Rank
from workbench.units import MIB, format_bytes

# Resident memory of a CPU rank beyond its tensors, torch 2.13 CPU build and accelerate 1.15,
# 2026-11-21: 314 MiB for tests/scripts/accelerate_loop.py, 364 MiB for the recipe gpt. See it again
# with `workbench launch tests/scripts/accelerate_loop.py --wait && workbench show`.
CPU_CONTEXT_BYTES = 364 * MIB
CPU_CONTEXT_OF_CUDA_BUILD_BYTES = 712 << 20  # the same rank with torch's CUDA libraries loaded
# What the imports of a trainer add to it: TRL 1.16 with transformers, peft and datasets. Five runs
# of the recipe finetune (SFT, packed, DPO, full) had 577 to 626 MiB beyond their tensors,
# 2026-11-23: `workbench show` of any such run.
# DeepSpeed 0.19 comes with DeepSpeed's strategies, and with FSDP, whose models Accelerate unwraps
# with DeepSpeed's class in hand where that is installed: 112 to 144 MiB over the ranks of ddp, and
# 16 MiB for fsdp where it was hidden, 2026-11-29: runs of the recipe gpt as above.
CPU_IMPORTS_BYTES = {"trl": 228 * MIB, "deepspeed": 124 * MIB}
# CUDA context + kernels 0.47-0.92 GiB (stas00/ml-engineering, A100, torch 2.1).
CUDA_CONTEXT_BYTES = 800 * MIB
# NCCL: +1.5 GiB with several communicators after the first collectives (ml-engineering); one
# communicator of one node holds a third of it.
NCCL_BYTES = 700 * MIB


DEVICES = ("cuda", "cpu")
"""Kinds of device that stand for a cluster of unknown cards."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardParts:
    """What is on the card beyond PyTorch's tensors."""

    parts: Mapping[str, int]
    card_bytes: int | None
    assumptions: tuple[str, ...]


def check_where(where: Cluster | str) -> None:
    """Refuse what is no cluster or kind of device: the name of a GPU would count as no card."""
    if not isinstance(where, Cluster) and where not in DEVICES:
        raise UsageError(
            f"{where!r} is not a kind of device: give 'cuda', 'cpu', or a cluster. For the name of "
            f"a GPU write Cluster.rented({where!r}, 8)."
        )


def card_parts(strategy: Strategy, where: Cluster | str, slack: int) -> CardParts:
    """Slack, context and communication library of one rank."""
    device = device_of(where)
    if device == "cpu":
        return CardParts(
            parts={CONTEXT: CPU_CONTEXT_BYTES},
            card_bytes=None,
            assumptions=("context of a CPU rank: 364 MiB, not measured on this host",),
        )
    card = (
        min((gpu.memory_bytes for gpu in where.gpus), default=None)
        if isinstance(where, Cluster)
        else None
    )
    groups = sum(
        degree > 1
        for degree in (strategy.data_ranks, strategy.tp, strategy.pp, strategy.cp, strategy.ep)
    )
    parts = {SLACK: slack, CONTEXT: CUDA_CONTEXT_BYTES}
    if groups:
        parts[COMMUNICATION] = groups * NCCL_BYTES
    return CardParts(
        parts=parts,
        card_bytes=card,
        assumptions=(
            (
                f"CUDA context {CUDA_CONTEXT_BYTES // MIB} MiB and NCCL {NCCL_BYTES // MIB} MiB "
                "per process group are typical values"
            ),
            (
                f"a job fits if {SAFETY:.0%} of the card stays free, in a plan too; the largest "
                "micro-batch and sequence leave more free: the headroom"
            ),
        ),
    )


def host_bytes(ranks: Sequence[Rank], where: Cluster | str) -> int | None:
    """Host memory of one node that offload takes; None where nothing is offloaded to it."""
    strategy = ranks[0].context.strategy
    if not strategy.offload or strategy.deepspeed.offload_device == "nvme":
        return None
    offloaded = max(offloaded_bytes(rank) for rank in ranks)
    on_node = len(where.gpus) if isinstance(where, Cluster) and where.gpus else strategy.world_size
    return offloaded * min(strategy.world_size, on_node) or None


def offloaded_bytes(rank: Rank) -> int:
    """What one rank keeps in host memory because of `strategy.offload`.

    Weights, master copy, optimizer states and activations as they would be on the card, and the
    gradients that follow their optimizer. Staging buffers come on top.
    """
    states = rank.states
    gradients = states.gradients * rank.context.gradients_leave
    activations = rank.stage.in_flight * max(0.0, rank.blocks.on_host)
    return round(states.on_host + gradients + activations)


def remarks(job: Job, offloaded: int | None) -> tuple[str, ...]:
    """What of the job was converted for its card, and the `cautions` that are left."""
    card = job.cluster.accelerator if isinstance(job.cluster, Cluster) else None
    converted = [note for note in job.notes if card is not None and note.startswith(card.name)]
    return (*converted, *cautions(job.workload, job.cluster, offloaded))


def cautions(workload: Workload, where: Cluster | str, offloaded: int | None) -> Iterator[str]:
    """Sentences on the hardware: number formats that the card lacks, host memory for offload."""
    cluster = where if isinstance(where, Cluster) else None
    if cluster is not None and cluster.accelerator is not None:
        lacking = cluster.accelerator.why_not(workload.precision)
        if lacking:
            yield lacking
    if offloaded is None:
        return
    text = f"offload keeps {format_bytes(offloaded)} in the host memory of a node, buffers on top"
    host_memory = None if cluster is None else cluster.memory_bytes
    if host_memory is None:
        yield f"{text}; how much the host has is not known"
    elif offloaded > host_memory:
        yield f"{text}; the host has {format_bytes(host_memory)}: it does not fit"
    else:
        yield f"{text}; the host has {format_bytes(host_memory)}"
