"""Advice that speed decides: links, larger or more GPUs, mixed types, recomputation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from workbench.describe import Cluster, Conditions, Strategy, Workload
from workbench.errors import UsageError
from workbench.estimate.memory import training_memory
from workbench.estimate.network import links
from workbench.estimate.reach import leaves_headroom
from workbench.estimate.step_time import step_time
from workbench.plan.advice_value import Advice, Number, Rule
from workbench.units import format_bytes, format_count, format_seconds, format_usd

_NVLINK_OR_PCIE = Rule(
    name="nvlink-or-pcie",
    evidence="step-time estimate of the same cluster with either link",
    source="workbench step time; link rates in one direction",
    article="10 to 15 % penalty for data parallel over PCIe; NVLink is 7x PCIe 5",
    corrects="C14, C13",
)
_ALL_REDUCE_TIME = Rule(
    name="all-reduce-time",
    evidence="latency + 2(N - 1)/N x bytes / bus bandwidth",
    source="doi 10.1016/j.jpdc.2008.09.002 (ring); link rates in one direction, catalog",
    article="an all-reduce on 8 NVLink GPUs completes in microseconds",
    corrects="C4, C3b",
)
_LARGER_OR_MORE = Rule(
    name="larger-or-more",
    evidence="memory and step-time estimates of each",
    source="workbench memory and step time; prices as given",
    article="a GPU with more memory avoids tensor parallelism entirely",
    corrects="C10, C40",
)
_MIXED_GPUS = Rule(
    name="mixed-gpus",
    evidence="step-time estimate of each GPU alone; N x the slowest",
    source="workbench step time",
    article="the slowest sets the speed; mix similar ones only (A100 with H100)",
)
_RECOMPUTE_COST = Rule(
    name="recompute-cost",
    evidence="step-time and memory estimates; forward 1, backward 2, repeated forward 1",
    source="arXiv 1604.06174; arXiv 2205.05198 (selective)",
    article="about 33 % extra compute for activation checkpointing",
    corrects="C34",
)


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
    times = {
        link: step_time(workload, strategy, replace(cluster, link=link), conditions)
        for link in ("nvlink", "pcie")
    }
    accelerator = cluster.accelerator
    assert accelerator is not None, "step_time has checked it"
    fast, slow = times["nvlink"], times["pcie"]
    penalty = slow.step_seconds / fast.step_seconds - 1
    verdict = f"Without NVLink a step takes {penalty:.0%} longer."
    if len(cluster.gpus) < 2:
        verdict = "One GPU per node: the link inside the node plays no part."
    elif not accelerator.has_link:
        verdict = f"{accelerator.name} has no NVLink: PCIe is all there is."
    elif penalty < 0.02:
        verdict = f"NVLink hardly matters here: without it a step takes {penalty:.1%} longer."
    rate, bus = accelerator.link_bytes_per_second, accelerator.pcie_bytes_per_second
    return _NVLINK_OR_PCIE.says(
        verdict=verdict,
        reason=f"{format_seconds(fast.step_seconds)} per step over NVLink, of which "
        f"{format_seconds(fast.exposed_seconds)} wait for other GPUs; "
        f"{format_seconds(slow.step_seconds)} over PCIe, {format_seconds(slow.exposed_seconds)} "
        "of them waiting.",
        condition=f"{strategy.name} on {strategy.world_size} GPUs, {format_count(fast.tokens)} "
        "tokens per step: more accumulation lowers the penalty, tensor parallelism raises it.",
        numbers={
            "nvlink_step_seconds": fast.step_seconds,
            "pcie_step_seconds": slow.step_seconds,
            "nvlink_exposed_seconds": fast.exposed_seconds,
            "pcie_exposed_seconds": slow.exposed_seconds,
            "penalty_share": penalty,
            "nvlink_bytes_per_second": rate if accelerator.has_link else None,
            "pcie_bytes_per_second": bus,
        },
        also=f"catalog of {accelerator.date}",
    )


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
    given = conditions or Conditions()
    seconds: dict[str, float] = {}
    for link in ("nvlink", "pcie") if accelerator.has_link else ("pcie",):
        network = links(replace(cluster, link=link), given)
        seconds[link] = network.reduce_seconds(gradient_bytes, network.group(count, 1))
    small = links(cluster, given)
    tiny = small.reduce_seconds(1024, small.group(count, 1))
    said = ", ".join(
        f"{format_seconds(value)} over {'NVLink' if name == 'nvlink' else 'PCIe'}"
        for name, value in seconds.items()
    )
    return _ALL_REDUCE_TIME.says(
        verdict=f"All-reduce of {format_bytes(gradient_bytes)} over {count} GPUs: {said}.",
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


def larger_or_more(
    workload: Workload,
    ways: Sequence[tuple[Strategy, Cluster]],
    conditions: Conditions | None = None,
) -> Advice:
    """Which of several machines for one job: the cheapest token, else the fastest.

    Args:
        workload: what is trained, per data-parallel rank.
        ways: layouts with their clusters, for instance one large GPU, two small ones.
        conditions: what was measured.

    Raises:
        UsageError: fewer than two ways, an impossible layout, an unknown accelerator.
    """
    if len(ways) < 2:
        raise UsageError("Compare at least two ways, each a strategy with its cluster.")
    numbers: dict[str, Number] = {}
    rows: list[tuple[str, bool, float, float | None]] = []
    steps: list[str] = []
    for strategy, cluster in ways:
        name = f"{cluster.name} with {strategy.name}"
        memory = training_memory(workload, strategy, cluster)
        rate = step_time(workload, strategy, cluster, conditions).tokens_per_second
        price = None if cluster.usd_per_hour is None else cluster.usd_per_hour * cluster.nodes
        usd = None if price is None else price / 3600 / rate * 1e9
        rows.append((name, bool(leaves_headroom(memory)), rate, usd))
        numbers |= {
            f"{name}: on_card_bytes": memory.on_card_bytes,
            f"{name}: tokens_per_second": rate,
            f"{name}: usd_per_billion_tokens": usd,
        }
        fits = "fits" if rows[-1][1] else "does not fit"
        steps.append(
            f"{name}: {format_bytes(memory.on_card_bytes)} of {format_bytes(memory.card_bytes)} "
            f"({fits}), {format_count(rate)} tokens/s, {format_usd(usd)} per 1 B tokens"
        )
    verdict, reason = _chosen(rows)
    return _LARGER_OR_MORE.says(
        verdict=verdict,
        reason=reason,
        condition="Micro-batch and accumulation per rank as given, so the global batch grows "
        "with the data-parallel ranks; a price per cluster is needed for the cheapest.",
        numbers=numbers,
        steps=tuple(steps),
    )


def _chosen(rows: Sequence[tuple[str, bool, float, float | None]]) -> tuple[str, str]:
    fitting = [row for row in rows if row[1]]
    if not fitting:
        return "None of them fits.", "Every one needs more memory than its cards have."
    fastest = max(fitting, key=lambda row: row[2])
    priced = [(usd, name) for name, _, _, usd in fitting if usd is not None]
    if len(priced) < len(fitting):
        return f"Fastest: {fastest[0]}.", "A price is missing, so the cheapest is unknown."
    usd, cheapest = min(priced)
    if cheapest == fastest[0]:
        return f"{cheapest}.", f"It is the fastest and the cheapest, {format_usd(usd)} per 1 B."
    return (
        f"Cheapest: {cheapest}; fastest: {fastest[0]}.",
        f"{format_usd(usd)} per 1 B tokens against {format_usd(fastest[3])}.",
    )


def mixed_gpus(
    workload: Workload, gpus: Mapping[str, int], conditions: Conditions | None = None
) -> Advice:
    """What different GPUs in one synchronous job cost: the slowest sets the pace.

    Args:
        workload: what each GPU does per step.
        gpus: GPU name -> how many of them.
        conditions: what was measured.

    Raises:
        UsageError: fewer than two kinds, an unknown GPU, a count below 1.
    """
    if len(gpus) < 2 or min(gpus.values()) < 1:
        raise UsageError("Give at least two kinds of GPU, each with a count of at least 1.")
    single = Strategy.parse("single", 1)
    rates: dict[str, float] = {}
    for name in gpus:
        cluster = Cluster.rented(name, gpus=1)
        rates[name] = step_time(workload, single, cluster, conditions).tokens_per_second
    slowest = min(rates, key=lambda name: rates[name])
    count = sum(gpus.values())
    together, ideal = count * rates[slowest], sum(gpus[name] * rates[name] for name in gpus)
    alone = {name: gpus[name] * rates[name] for name in gpus}
    best = max(alone, key=lambda name: alone[name])
    verdict = f"Together they run at the pace of {slowest}: {together / ideal:.0%} of their sum."
    if alone[best] > together:
        verdict = f"Leave {slowest} out: {gpus[best]} x {best} alone are faster than all {count}."
    return _MIXED_GPUS.says(
        verdict=verdict,
        reason=f"{format_count(together)} tokens/s together, {format_count(alone[best])} with "
        f"{gpus[best]} x {best} alone; without waiting the sum would be {format_count(ideal)}.",
        condition="One synchronous job with the same micro-batch on every GPU, communication "
        "left out; the smallest card also sets the micro-batch.",
        numbers={
            **{f"{name}: tokens_per_second": rate for name, rate in rates.items()},
            "together_tokens_per_second": together,
            "sum_tokens_per_second": ideal,
            "used_share": together / ideal,
        },
    )


def recompute_cost(
    workload: Workload,
    strategy: Strategy,
    cluster: Cluster,
    conditions: Conditions | None = None,
) -> Advice:
    """What recomputing activations costs in time and saves in memory, selective and full.

    Raises:
        UsageError: an impossible layout, or an accelerator that is not in the catalog.
    """
    times: dict[str, float] = {}
    work: dict[str, float] = {}
    memory: dict[str, int] = {}
    for kind in ("none", "selective", "full"):
        layout = strategy.with_options(recompute=kind)
        found = step_time(workload, layout, cluster, conditions)
        times[kind], work[kind] = found.step_seconds, found.hardware_flops / found.model_flops
        memory[kind] = training_memory(workload, layout, cluster).on_card_bytes
    slower = {kind: times[kind] / times["none"] - 1 for kind in ("selective", "full")}
    saved = {kind: memory["none"] - memory[kind] for kind in ("selective", "full")}
    return _RECOMPUTE_COST.says(
        verdict=f"Full recompute: {slower['full']:.0%} more time for "
        f"{format_bytes(saved['full'])} less; selective: {slower['selective']:.0%} for "
        f"{format_bytes(saved['selective'])}.",
        reason=f"Full recompute runs every forward pass twice: {work['full']:.2f}x the model's "
        f"FLOPs, selective {work['selective']:.2f}x.",
        condition=f"{strategy.name}, micro-batch {workload.micro_batch}, sequence "
        f"{workload.seq_len}. MFU does not count the repetition, HFU does.",
        numbers={
            "full_time_share": slower["full"],
            "selective_time_share": slower["selective"],
            "full_flops_ratio": work["full"],
            "selective_flops_ratio": work["selective"],
            "full_saved_bytes": saved["full"],
            "selective_saved_bytes": saved["selective"],
        },
    )
