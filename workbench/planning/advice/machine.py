"""Advice on the machine around the GPUs: cores, host memory, network; checkpoints, spot or not."""

from __future__ import annotations

import math
from dataclasses import replace

from workbench.describe import Cluster, Conditions, Offer, Strategy, Workload, prices
from workbench.describe.checks import require_number
from workbench.errors import UsageError
from workbench.estimate.card import host_bytes
from workbench.estimate.interruptions import (
    HOUR,
    checkpoint_interval,
    daly_interval,
    expected_wall_seconds,
)
from workbench.estimate.rank import ranks_of
from workbench.estimate.step_time import step_time
from workbench.planning.advice.value import Advice, Rule
from workbench.planning.market import RANK_HOST_BYTES
from workbench.units import GIB, format_bytes, format_seconds

_USUAL_CORES = 4  # per GPU, where the input's cost is unknown: the usual upper figure
_STATE_BYTES = 12  # per parameter: fp32 weights and Adam's two moments
_SHORT = "Too little"
_PORT_GBITS = 25  # per GPU: the usual least for data parallel across nodes

_INSTANCE_SANITY = Rule(
    name="instance-sanity",
    evidence="1 core for training + input_seconds / micro-batch seconds for loading; 8 GiB per "
    "rank + 12 bytes per parameter offloaded; 12 per parameter gathered on save",
    source="arXiv 2101.06840 (offload)",
    corrects="8 to 16 GB of host memory per GPU are enough",
)
_CHECKPOINT_INTERVAL = Rule(
    name="checkpoint-interval",
    evidence="Young sqrt(2 C M); Daly's higher order; lost share from Daly's expected wall time",
    source="doi 10.1145/361147.361115 (Young); doi 10.1016/j.future.2004.11.016 (Daly)",
    corrects="save every 500 to 1,000 steps, or every 15 to 30 minutes",
)


def instance_sanity(
    workload: Workload,
    strategy: Strategy,
    offer: Offer,
    nodes: int = 1,
    conditions: Conditions | None = None,
) -> Advice:
    """Whether cores, host memory and network of an offer suit the job.

    Args:
        workload: what is trained.
        strategy: how it is spread; its ranks must be the offer's GPUs x nodes.
        offer: the machine.
        nodes: how many of them.
        conditions: what was measured; `input_seconds`, as one core's time, decides the cores.

    Raises:
        UsageError: an impossible layout, or other ranks than GPUs.
    """
    cluster = _one_rank_each(strategy, offer, nodes)
    measured = conditions or Conditions()
    step = step_time(workload, strategy, cluster, replace(measured, input_seconds=0.0))
    waiting = step.exposed_seconds / step.step_seconds
    gather, memory = _host_bytes(workload, strategy, cluster)
    cores = _cores_per_gpu(measured, step.step_seconds / workload.accumulate)
    verdict = _verdict(offer, nodes, cores, memory)
    too_little = verdict.startswith(_SHORT)
    return _INSTANCE_SANITY.advice(
        verdict=verdict,
        holds=not too_little,
        next="Take a machine with more of it: workbench prices lists them." if too_little else "",
        reason=f"{cores} cores per GPU and {format_bytes(memory)} of host memory are needed; "
        f"{waiting:.0%} of a step waits for other GPUs.",
        condition=f"{strategy.name} on {nodes} x {offer.gpus} {offer.gpu}. A measured "
        "input_seconds replaces the usual number of cores.",
        numbers={
            "cores_per_gpu": offer.cpu_cores and offer.cpu_cores / offer.gpus,
            "cores_per_gpu_needed": cores,
            "host_memory_bytes": offer.memory_bytes,
            "host_memory_bytes_needed": memory,
            "gathered_checkpoint_bytes": gather,
            "gbits_per_gpu_between_nodes": _port(offer) if nodes > 1 else None,
            "waiting_share": waiting,
        },
        steps=_gather_step(gather, memory, offer.memory_bytes),
        also=f"{offer.source or 'offer without a source'} ({offer.date or 'undated'})",
    )


def _one_rank_each(strategy: Strategy, offer: Offer, nodes: int) -> Cluster:
    """The machines of the offer, which have one GPU for each rank."""
    cluster = offer.cluster(nodes)
    if strategy.world_size != cluster.world_size:
        raise UsageError(
            f"{strategy.name} has {strategy.world_size} ranks, {nodes} x {offer.name} has "
            f"{cluster.world_size} GPUs. Give the strategy one rank per GPU."
        )
    return cluster


def known_offer(cluster: Cluster) -> Offer | None:
    """The cheapest undoubted machine of the price table with just these GPUs; None = none."""
    gpu = cluster.accelerator
    if gpu is None:
        return None
    all_offers = prices.offers(gpu=gpu.id, live=False)
    priced = [
        offer for offer in all_offers if offer.gpus == len(cluster.gpus) and offer.usd_per_hour
    ]
    plain = [offer for offer in priced if not offer.marks]
    return min(plain or priced, key=lambda offer: offer.usd_per_hour or 0.0, default=None)


def _gather_step(gather: int, memory: int, has: int | None) -> tuple[str, ...]:
    if not gather or (has is not None and has >= memory + gather):
        return ()
    gathered, memory_text = format_bytes(gather), format_bytes(has)
    how = "Save sharded (torch.distributed.checkpoint)"
    return (
        f"{how}: gathered on one rank it takes {gathered} more; the machine has {memory_text}.",
    )


def _port(offer: Offer) -> float | None:
    """Gbit/s of the network per GPU."""
    return offer.network and offer.network.bytes_per_second * 8e-9 / offer.gpus


def _verdict(offer: Offer, nodes: int, cores: int, memory: int) -> str:
    """What is too little, and what is unknown."""
    has = offer.memory_bytes
    items = [
        ("cores per GPU", offer.cpu_cores and offer.cpu_cores / offer.gpus, cores),
        ("GiB of host memory", has and has / GIB, memory / GIB),
    ]
    if nodes > 1:
        items.append(("Gbit/s per GPU between nodes", _port(offer), _PORT_GBITS))
    short = [
        f"{available:.3g} {name}, {needed:.3g} needed"
        for name, available, needed in items
        if available is not None and available < needed
    ]
    unknown = [name for name, available, _ in items if available is None]
    verdict = "What is known suffices." if unknown else "Cores, memory and network suffice."
    if short:
        verdict = f"{_SHORT}: {'; '.join(short)}."
    return verdict + (f" Unknown: {', '.join(unknown)}." if unknown else "")


def _cores_per_gpu(conditions: Conditions, micro_batch_seconds: float) -> int:
    """One for training and as many as prepare micro-batches as fast as the GPU takes them."""
    if not conditions.input_seconds:
        return _USUAL_CORES
    return 1 + math.ceil(conditions.input_seconds / micro_batch_seconds)


def _host_bytes(workload: Workload, strategy: Strategy, cluster: Cluster) -> tuple[int, int]:
    """Bytes of a checkpoint gathered on one rank, and what one node needs without it."""
    count = workload.model.parameters
    gather = 0 if workload.lora_rank else _STATE_BYTES * count
    offloaded = host_bytes(ranks_of(workload, strategy), cluster) or 0
    return gather, len(cluster.gpus) * RANK_HOST_BYTES + offloaded


def checkpoint_advice(
    checkpoint_seconds: float,
    mean_hours_between_interruptions: float,
    restart_seconds: float = 0.0,
) -> Advice:
    """How often to save, and what share of the time that and the interruptions cost.

    Args:
        checkpoint_seconds: what one checkpoint holds the training up (0 is not possible).
        mean_hours_between_interruptions: of the whole job, failures included.
        restart_seconds: from an interruption to the first new step.

    Raises:
        UsageError: a time not above 0, or interruptions so frequent that nothing gets done.
    """
    require_number("checkpoint_seconds", checkpoint_seconds, above=0)
    young = checkpoint_interval(checkpoint_seconds, mean_hours_between_interruptions)
    daly = daly_interval(checkpoint_seconds, mean_hours_between_interruptions)
    mean = mean_hours_between_interruptions * HOUR
    work = max(1000 * mean, 1000 * young)  # long against both, so that the share is the limit
    wall = expected_wall_seconds(work, checkpoint_seconds, daly, mean, restart_seconds)
    lost = wall / work - 1
    return _CHECKPOINT_INTERVAL.advice(
        holds=None,
        verdict=f"Save every {format_seconds(daly)}.",
        reason=f"A checkpoint takes {format_seconds(checkpoint_seconds)} and the job is "
        f"interrupted every {format_seconds(mean)} on average: saving, repeating and restarting "
        f"add {lost:.1%} to the time.",
        condition="Interruptions at random. M is that of the whole job: of n machines each with "
        "mean m it is m/n. Asynchronous checkpoints count what they hold up, not what they take.",
        numbers={
            "young_seconds": young,
            "daly_seconds": daly,
            "lost_share": lost,
            "checkpoint_seconds": checkpoint_seconds,
            "mean_hours_between_interruptions": mean_hours_between_interruptions,
            "restart_seconds": restart_seconds,
        },
    )
