"""Advice on links: NVLink or PCIe, and how long an all-reduce takes over each."""

from __future__ import annotations

from dataclasses import replace

from workbench.describe import Accelerator, Cluster, Conditions, Strategy, Workload
from workbench.errors import UsageError
from workbench.estimate.network import links
from workbench.estimate.step_time import step_time
from workbench.planning.advice.value import Advice, Rule
from workbench.units import format_bytes, format_count, format_seconds

_NVLINK_OR_PCIE = Rule(
    name="nvlink-or-pcie",
    evidence="step-time estimate of the same cluster with either link",
    source="workbench step time; link rates in one direction",
    corrects="PCIe costs 10 to 15 %; NVLink moves 900 GB/s (both directions added)",
)
_ALL_REDUCE_TIME = Rule(
    name="all-reduce-time",
    evidence="latency + 2(N - 1)/N x bytes / bus bandwidth",
    source="doi 10.1016/j.jpdc.2008.09.002 (ring); link rates in one direction, catalog",
    corrects="an all-reduce over NVLink takes microseconds, on however many GPUs",
)

_MOST_WAITING = 0.1  # of a step: beyond it another layout or more accumulation is worth a look


def nvlink_or_pcie(
    workload: Workload,
    strategy: Strategy,
    cluster: Cluster,
    conditions: Conditions | None = None,
) -> Advice:
    """What a step costs when the GPUs of a node have no NVLink, or it is switched off.

    Raises:
        UsageError: an impossible layout, or an accelerator that is not in the catalog.
    """
    fast, slow = (
        step_time(workload, strategy, replace(cluster, link=link), conditions)
        for link in ("nvlink", "pcie")
    )
    accelerator = cluster.accelerator
    assert accelerator is not None, "step_time has checked it"
    step = step_time(workload, strategy, cluster, conditions)
    waiting = step.exposed_seconds / step.step_seconds
    linked = _can_be_linked(cluster, accelerator)
    penalty = slow.step_seconds / fast.step_seconds - 1 if linked else None
    over_link = (
        f"{format_seconds(fast.step_seconds)} per step over NVLink, of which "
        f"{format_seconds(fast.exposed_seconds)} wait for other GPUs; "
    )
    return _NVLINK_OR_PCIE.advice(
        verdict=_verdict(cluster, accelerator, penalty),
        holds=waiting <= _MOST_WAITING,
        next=f"{waiting:.0%} of a step waits for other GPUs: more --accumulate, another layout "
        "(workbench plan), or fewer GPUs."
        if waiting > _MOST_WAITING
        else "",
        reason=f"{over_link if linked else ''}{format_seconds(slow.step_seconds)} "
        f"{'' if linked else 'per step '}over PCIe, {format_seconds(slow.exposed_seconds)} "
        "of them waiting.",
        condition=f"{strategy.name} on {strategy.world_size} GPUs, {format_count(fast.tokens)} "
        "tokens per step: more accumulation lowers the penalty, tensor parallelism raises it.",
        numbers={
            "nvlink_step_seconds": fast.step_seconds if linked else None,
            "pcie_step_seconds": slow.step_seconds,
            "nvlink_exposed_seconds": fast.exposed_seconds if linked else None,
            "pcie_exposed_seconds": slow.exposed_seconds,
            "penalty_share": penalty,
            "nvlink_bytes_per_second": accelerator.link_bytes_per_second
            if accelerator.has_link
            else None,
            "pcie_bytes_per_second": accelerator.pcie_bytes_per_second,
        },
        also=f"catalog of {accelerator.date}",
    )


def _can_be_linked(cluster: Cluster, accelerator: Accelerator) -> bool:
    """Whether NVLink can join all GPUs of a node; where someone says that it does, it can."""
    gpus = len(cluster.gpus)
    return accelerator.link_joins(gpus) or (accelerator.has_link and cluster.link == "nvlink")


def _verdict(cluster: Cluster, accelerator: Accelerator, penalty: float | None) -> str:
    gpus = len(cluster.gpus)
    if gpus < 2:
        return "One GPU per node: the link inside the node plays no part."
    if not accelerator.has_link:
        return f"{accelerator.name} has no NVLink: PCIe is all there is."
    if penalty is None:
        return f"A bridge does not join {gpus} x {accelerator.name}: between them is PCIe."
    if cluster.link == "catalog" and "bridge" in accelerator.link:
        less = 1 - 1 / (1 + penalty)
        return f"No bridge is counted; with one (--link nvlink) a step takes {less:.0%} less time."
    if penalty < 0.02:
        return f"NVLink hardly matters here: without it a step takes {penalty:.1%} longer."
    return f"Without NVLink a step takes {penalty:.0%} longer."


def all_reduce_time(
    gradient_bytes: float, cluster: Cluster, conditions: Conditions | None = None
) -> Advice:
    """How long one all-reduce of so many bytes takes over all GPUs, by link.

    Raises:
        UsageError: no bytes, a single GPU, or an accelerator that is not in the catalog.
    """
    accelerator, count = cluster.accelerator, cluster.world_size
    if not 0 < gradient_bytes < 1e15:
        raise UsageError(f"gradient_bytes must be above 0 and below 1e15, not {gradient_bytes}.")
    if accelerator is None or count < 2:
        raise UsageError("An all-reduce needs at least 2 GPUs of a kind in the catalog.")
    measured = conditions or Conditions()
    seconds: dict[str, float] = {}
    for link in ("nvlink", "pcie") if _can_be_linked(cluster, accelerator) else ("pcie",):
        network = links(replace(cluster, link=link), measured)
        seconds[link] = network.reduce_seconds(gradient_bytes, network.group(count, 1))
    small = links(cluster, measured)
    tiny = small.reduce_seconds(1024, small.group(count, 1))
    by_link = ", ".join(
        f"{format_seconds(value)} over {'NVLink' if name == 'nvlink' else 'PCIe'}"
        for name, value in seconds.items()
    )
    return _ALL_REDUCE_TIME.advice(
        holds=None,
        verdict=f"All-reduce of {format_bytes(gradient_bytes)} over {count} GPUs: {by_link}.",
        reason=f"Each GPU sends 2(N - 1)/N of it, {2 * (count - 1) / count:.3g}x "
        f"the bytes; only kilobytes take microseconds ({tiny * 1e6:.0f} µs for 1 KiB).",
        condition="One message of that size; what compute hides is not waited for. Many small "
        "messages take longer.",
        numbers={
            "bytes": gradient_bytes,
            "gpus": count,
            "nvlink_seconds": seconds.get("nvlink"),
            "pcie_seconds": seconds["pcie"],
            "kilobyte_seconds": tiny,
        },
    )
