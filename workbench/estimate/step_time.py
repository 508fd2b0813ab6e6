"""Time of one optimizer step in closed form: compute, exposed communication, bubble, waiting.

One micro-batch of the slowest pipeline stage is timed block by block (block_time.py), what the
data-parallel ranks exchange is laid beside it (exchange.py), the schedule adds its bubble, and the
optimizer, the input and the slowest rank follow once per step.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from workbench.describe import Accelerator, Cluster, Conditions, Strategy, Workload
from workbench.describe.job_function import takes_job
from workbench.errors import UsageError
from workbench.estimate.attention import attention_sentences
from workbench.estimate.block_time import BlockTime, block_time, computing, head_time
from workbench.estimate.context import RankContext
from workbench.estimate.exchange import exchange, host_seconds
from workbench.estimate.fitted import fitted
from workbench.estimate.flops import model_flops, recompute_flops
from workbench.estimate.measured_time import RANGE as ROOFLINE
from workbench.estimate.measured_time import RANGE_TEXT, measured_block
from workbench.estimate.memory import check_layout
from workbench.estimate.network import Groups, Links, groups, links
from workbench.estimate.optimizer_time import optimizer_seconds
from workbench.estimate.pipeline.time import pipeline_seconds
from workbench.estimate.rank import Rank, ranks_of
from workbench.estimate.rates import Machine, machine
from workbench.estimate.stack_factor import calibrated
from workbench.estimate.stages import stages
from workbench.estimate.time_range import time_range
from workbench.estimate.timing import COMMUNICATION, STACK, StepTime

_PARTS = {
    "matmul": "matmul",
    "attention": "attention",
    "memory-bound operations": "pointwise",
    "recompute": "recompute",
    "expert launches": "host",
    f"{COMMUNICATION}: tp": "tp",
    f"{COMMUNICATION}: cp": "cp",
    f"{COMMUNICATION}: ep": "ep",
}
"""Part of a step -> field of `PassTime`."""
SOURCES = (
    "rates: ml-engineering MAMF and network tables; attention: arXiv 2307.08691, 2407.08608",
    "FLOPs: arXiv 2204.02311; tensor and pipeline parallelism: arXiv 2104.04473, 2205.05198",
    "sharding: arXiv 1910.02054, 2304.11277; checked in tests/accuracy",
)
CALIBRATED = (0.92, 1.10)
"""Range where the machine was measured; else `time_range`."""


@takes_job
def step_time(
    workload: Workload,
    strategy: Strategy,
    cluster: Cluster,
    conditions: Conditions | None = None,
) -> StepTime:
    """Seconds of one optimizer step, in named parts, with a range.

    Args:
        workload: What is trained.
        strategy: How it is spread; at most as many ranks as the cluster has GPUs.
        cluster: Where; its accelerator must be in the catalog.
        conditions: What was measured on it; None = a healthy machine without measurements.

    Raises:
        UsageError: an impossible layout, a cluster whose accelerator is unknown, or a precision
            that it does not have.
    """
    accelerator = _check(workload, strategy, cluster)
    measured = conditions or Conditions()
    flash = workload.kernels.flash_version
    gpu = machine(accelerator, workload.precision, flash, measured, workload.kernels.software_stack)
    network = links(cluster, measured)
    peers = groups(strategy, network)
    by_content: dict[object, StageTime] = {}
    timed: list[StageTime] = []
    for rank in ranks_of(workload, strategy):
        content = rank.stage.content
        if content not in by_content:
            by_content[content] = _stage_time(rank, gpu, network, peers)
        timed.append(by_content[content])
    parts = _step_parts(workload, strategy, cluster, timed, measured)
    ratio = measured.measured_ratio or 1.0
    low, high = CALIBRATED if measured.is_measured else time_range(workload, strategy)
    if workload.model.measured is not None:
        low, high = ROOFLINE
    peak = accelerator.peak_flops(workload.precision)
    flops = sum(model_flops(workload).values()) * workload.accumulate * strategy.data_ranks
    step = StepTime(
        parts={name: seconds * ratio for name, seconds in parts.items() if seconds > 0},
        low=low,
        high=high,
        gpus=strategy.world_size,
        tokens=workload.tokens_per_step(strategy.data_ranks),
        unit="tokens" if workload.counts_tokens else "samples",
        model_flops=flops,
        hardware_flops=flops + _repeated_flops(workload, strategy),
        peak_flops=peak and peak * strategy.world_size,
        assumptions=_assumptions(workload, strategy, network, measured),
        sources=SOURCES,
    )
    return calibrated(step, workload, "cuda", accelerator.arch)


def _check(workload: Workload, strategy: Strategy, cluster: Cluster) -> Accelerator:
    """The cluster's accelerator; a UsageError where there is nothing to compute."""
    check_layout(workload, strategy)
    accelerator: Accelerator | None = getattr(cluster, "accelerator", None)  # a job's may be "cpu"
    if accelerator is None:
        raise UsageError(
            "The time of a step is known for GPUs of the catalog. This machine has none, or it is "
            "not known: describe it with gpu=..., or with Cluster.rented(gpu, ...)."
        )
    if strategy.world_size > cluster.world_size:
        raise UsageError(
            f"The strategy has {strategy.world_size} ranks, but the cluster only "
            f"{cluster.world_size} GPUs. Change a degree, or the number of GPUs."
        )
    if workload.model.traced is not None and workload.model.measured is None:
        raise UsageError(
            "The time of a traced module has no closed form. Measure the script that trains it: "
            "workbench measure train.py."
        )
    return accelerator


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTime:
    """One pipeline stage: seconds per micro-batch by part, and once per step."""

    forward: float
    """Forward of one micro-batch."""
    backward: float
    """Backward of one micro-batch."""
    parts: Mapping[str, float]
    """Both by part; they sum to forward + backward."""
    once: Mapping[str, float]
    """Once per step: what gradients, gathered weights and the optimizer take."""


def _stage_time(rank: Rank, gpu: Machine, network: Links, peers: Groups) -> StageTime:
    context = rank.context
    blocks = _blocks(rank, gpu, network, peers)
    forward = sum(block.forward * sum(block.time.forward) for block in blocks)
    backward = sum(block.backward * sum(block.time.backward) for block in blocks)
    slower = 1 / gpu.stack_efficiency - 1
    lost_forward = slower * sum(block.forward * computing(block.time.forward) for block in blocks)
    lost_back = slower * sum(block.backward * computing(block.time.backward) for block in blocks)
    forward, backward = forward + lost_forward, backward + lost_back
    launches = sum(block.forward * block.time.launches for block in blocks)
    repeated_launches = sum(block.backward * block.time.launches * block.again for block in blocks)
    per_launch = 0.0 if context.kernels.cuda_graphs else fitted("launch_seconds")
    host = host_seconds(rank, launches * per_launch)
    host_back = repeated_launches / launches * host if launches else 0.0
    busy, busy_back = max(forward, host), max(backward, host_back)
    exposed = exchange(rank, network, peers, forward=busy, backward=busy_back)
    parts = _block_parts(blocks)
    parts[STACK] = lost_forward + lost_back
    parts["kernel launches"] = busy - forward + busy_back - backward
    parts[f"{COMMUNICATION}: sharded weights"] = exposed.forward + exposed.backward
    send = _send_seconds(context, network, peers)
    parts[f"{COMMUNICATION}: pipeline"] = send
    moved = _offload_seconds(rank, gpu, forward + backward)
    parts["offload traffic"] = moved
    fixed = optimizer_seconds(rank, gpu)
    return StageTime(
        forward=busy + exposed.forward + send / 2,
        backward=busy_back + exposed.backward + send / 2 + moved,
        parts=parts,
        once={**fixed, f"{COMMUNICATION}: gradients": exposed.once},
    )


class Blocks(NamedTuple):
    """Equal blocks of a stage."""

    forward: float
    """Those that forward goes through; a share of one is a mean."""
    backward: float
    """Those that backward goes through."""
    again: float
    """Operations that the host launches in backward for each of forward."""
    time: BlockTime


def _blocks(rank: Rank, gpu: Machine, network: Links, peers: Groups) -> list[Blocks]:
    """The stage's blocks and head; apart, those that repeat forward and those that do not."""
    context, stage = rank.context, rank.stage
    strategy, repeated_share = context.strategy, fitted("backward_launches")
    full = strategy.recompute == "full"
    if context.model.measured is not None:
        return [
            Blocks(
                1, 1, repeated_share + full, measured_block(context, context.model.measured, gpu)
            )
        ]
    share = stage.recomputed(strategy)
    blocks = list[Blocks]()
    for moe, count, trained in stage.kinds:
        recomputed_blocks = trained * share
        if recomputed_blocks:
            time = block_time(context, gpu, network, peers, moe=moe)
            blocks.append(Blocks(recomputed_blocks, recomputed_blocks, repeated_share + full, time))
        if recomputed_blocks < count:
            plain = replace(context, strategy=replace(strategy, recompute="none"))
            time = block_time(plain, gpu, network, peers, moe=moe)
            blocks.append(
                Blocks(count - recomputed_blocks, trained - recomputed_blocks, repeated_share, time)
            )
    if stage.head:
        blocks.append(Blocks(1, 1, repeated_share + full, head_time(context, gpu, network, peers)))
    return blocks


def _block_parts(blocks: list[Blocks]) -> dict[str, float]:
    return {
        part: sum(
            block.forward * getattr(block.time.forward, name)
            + block.backward * getattr(block.time.backward, name)
            for block in blocks
        )
        for part, name in _PARTS.items()
    }


def _step_parts(
    workload: Workload,
    strategy: Strategy,
    cluster: Cluster,
    timed: list[StageTime],
    conditions: Conditions,
) -> dict[str, float]:
    """Parts of the whole step: the slowest stage's micro-batches, the bubble, what comes once."""
    slowest = max(timed, key=lambda stage: stage.forward + stage.backward)
    batches = workload.accumulate
    parts = {name: batches * seconds for name, seconds in slowest.parts.items()}
    parts["pipeline bubble"] = _bubble(strategy, timed, batches)
    for name in dict.fromkeys(name for stage in timed for name in stage.once):
        parts[name] = max(stage.once.get(name, 0.0) for stage in timed)
    total = sum(parts.values())
    ranks = max(1, cluster.nodes)
    wait = fitted("spread") * math.sqrt(2 * math.log(ranks)) if ranks > 1 else 0.0
    slowest_rank = total * (wait + conditions.straggler)
    # The loader goes on all the while, also beside the optimizer and while ranks wait.
    parts["input wait"] = max(0.0, batches * conditions.input_seconds - total - slowest_rank)
    parts[f"{COMMUNICATION}: slowest rank"] = slowest_rank
    return parts


def _bubble(strategy: Strategy, timed: list[StageTime], batches: int) -> float:
    """Idle time of the slowest stage: exact for one chunk per rank, else that of equal stages."""
    if strategy.pp == 1:
        return 0.0
    forward = [stage.forward for stage in timed]
    backward = [stage.backward for stage in timed]
    chunks = strategy.pipeline.virtual_stages
    name = strategy.pipeline.schedule
    name = "interleaved" if chunks > 1 and name == "1f1b" else name
    if chunks == 1 and name in {"gpipe", "1f1b", "naive"}:
        busy = batches * max(map(sum, zip(forward, backward, strict=True)))
        return pipeline_seconds(name, strategy.pp, batches, forward, backward) - busy
    forward_seconds, backward_seconds = statistics.fmean(forward), statistics.fmean(backward)
    total = pipeline_seconds(
        name, strategy.pp, batches, forward_seconds, backward_seconds, virtual_stages=chunks
    )
    return total - batches * (forward_seconds + backward_seconds)


def _send_seconds(context: RankContext, network: Links, peers: Groups) -> float:
    """Activations to the next stage and gradients back, as far as nothing hides them."""
    strategy, chunks = context.strategy, context.strategy.pipeline.virtual_stages
    if strategy.pp == 1:
        return 0.0
    size = context.width.compute * context.workload.tokens / strategy.cp * context.model.hidden
    if strategy.sequence_parallel:
        size /= strategy.tp
    hop = network.send_seconds(size, between_nodes=peers.stage_crosses_nodes)
    return 2 * hop * chunks * (fitted("chunks_left") if chunks > 1 else 1.0)


def _offload_seconds(rank: Rank, gpu: Machine, busy: float) -> float:
    """Weights fetched for forward and backward, gradients and activations sent to the host."""
    context = rank.context
    total, c, offload = 0.0, context.width.compute, context.strategy.offload
    if "parameters" in offload:
        elements, width = rank.elements, context.width
        moved = 2 * c + (4 if context.trains else 0)  # a trained weight's fp32 gradient goes back
        frozen = elements.frozen_linear * width.quantized + elements.frozen_other * width.frozen
        fetched = moved * elements.trained + 2 * frozen
        total += fetched / context.strategy.shard_ranks / gpu.host_bytes
    if "activations" in offload:
        total += 2 * max(0.0, rank.blocks.on_host) / gpu.host_bytes
    return max(fitted("offload_left") * total, total - fitted("offload_beside") * busy)


def _repeated_flops(workload: Workload, strategy: Strategy) -> float:
    model = workload.model
    if model.measured is not None:
        repeated = model.measured.forward.flops.at(workload.micro_batch)
        return repeated * workload.accumulate * strategy.data_ranks * (strategy.recompute == "full")
    total = 0.0
    for stage in stages(model, strategy, workload.accumulate, workload.trained_layers):
        for moe, _, trained in stage.kinds if model.traced is None else ():
            repeated = recompute_flops(workload, strategy, moe=moe)
            total += stage.recomputed(strategy) * trained * sum(repeated.values())
    ranks = strategy.data_ranks * strategy.tp * strategy.cp
    return total * workload.accumulate * ranks


def _routing(workload: Workload, strategy: Strategy) -> str:
    uneven = workload.kernels.expert_imbalance
    if strategy.ep == 1 or uneven == 1:
        return "routing is balanced: every expert sees the same number of tokens"
    return f"routing is uneven: the busiest rank's experts see {uneven:g} times the mean of tokens"


def _assumptions(
    workload: Workload, strategy: Strategy, network: Links, conditions: Conditions
) -> tuple[str, ...]:
    sentences = [
        (
            f"{workload.precision}, attention {workload.attention} "
            f"(version {workload.kernels.flash_version}), recompute {strategy.recompute}"
        ),
        conditions.source
        or "usual rates of the GPU's generation; nothing was measured on this machine",
    ]
    sentences += attention_sentences(workload)
    if workload.model.measured is not None:
        sentences.append(RANGE_TEXT)
    if network.assumed:
        sentences.append(network.assumed)
    if workload.model.experts:
        sentences.append(_routing(workload, strategy))
    if strategy.pp > 1:
        sentences.append(
            f"schedule {strategy.pipeline.schedule}, {workload.accumulate} micro-batches per step"
        )
    return tuple(sentences)
