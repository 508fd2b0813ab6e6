"""The winning peak in words, with the best remedy and the bytes that it saves."""

from __future__ import annotations

from collections.abc import Sequence

from workbench.describe import Cluster, Strategy, Workload
from workbench.describe.checks import require_instance
from workbench.describe.job import Job
from workbench.describe.job_function import as_job
from workbench.estimate.parts import Estimate, Peak
from workbench.estimate.sizing.limits import HEADROOM, leaves_headroom
from workbench.estimate.sizing.switch import Switch, switches, switches_that_fit
from workbench.units import format_bytes

_MOMENTS = {
    "forward end": "the end of the forward pass",
    "loss backward": "the loss's backward",
    "block backward": "the backward pass through the last block",
    "end of backward": "the end of the backward pass, when all gradients exist",
    "root reduction": "the reduction of the embedding's and the head's gradients",
    "optimizer step": "the optimizer's step",
    "initialisation": "the start, when every rank builds the whole model",
}
_PARTS = {
    "parameters": "of weights",
    "gradients": "of gradients",
    "activations: blocks": "of activations that the blocks keep for backward",
    "activations: outside": "of activations outside the blocks",
    "communication buffers": "of gathered weights and communication buffers",
    "dequantisation": "for one unpacked weight matrix",
    "optimizer step": "of the optimizer's scratch",
}
_STATES = ("parameters", "master copy", "optimizer states", "gradients")
_LASTING = frozenset(_STATES[:3])
_CLOSE = 0.05
_BEST = "Best remedy: "


def explain(
    estimate: Estimate,
    workload: Workload | Job,
    strategy: Strategy | None = None,
    cluster: Cluster | str = "cuda",
) -> tuple[str, ...]:
    """Say why the peak is where it is and what would lower it, most important first.

    Args:
        estimate: What `training_memory` answered for the other three.
        workload: What is trained; or a job, which has the other two too.
        strategy: How it is spread.
        cluster: Where; a device name when no card is known.
    """
    require_instance("estimate", Estimate, estimate, "what training_memory answers")
    job = as_job(workload, strategy, cluster)
    workload = job.workload
    peak = _winning(estimate)
    if peak is None:
        return ()
    all_switches = switches(job)
    remedies = [switch for switch in all_switches if not switch.changes_result]
    winner = _winner(peak, workload, remedies)
    states = _states(estimate, peak, workload, remedies)
    text, _, remedy = winner.partition(_BEST)
    sentences = [
        _usual(estimate, all_switches),
        text.rstrip() if remedy and states.endswith(remedy) else winner,
        states,
        _runner_up(estimate),
        _trap(workload, job.strategy, estimate),
        _verdict(estimate, job),
    ]
    return tuple(sentence for sentence in sentences if sentence)


def _usual(estimate: Estimate, all_switches: Sequence[Switch]) -> str:
    """What people do first for such a job, where the job as it stands does not fit."""
    usual = next((switch for switch in all_switches if switch.usual), None)
    if usual is None or leaves_headroom(estimate) is not False:
        return ""
    needs = f"{format_bytes(usual.on_card_bytes)} on the card"
    fits = "which fits" if usual.fits else "which is not enough alone"
    return f"Usual first: {usual.name} ({usual.option}; {usual.in_practice}): {needs}, {fits}."


def _winning(estimate: Estimate) -> Peak | None:
    peaks = [stage.peak for stage in estimate.stages]
    return max(peaks, key=lambda peak: peak.total_bytes, default=None)


def _winner(peak: Peak, workload: Workload, remedies: Sequence[Switch]) -> str:
    """The peak, its largest parts (what lasts through the step left out) and the remedy."""
    passing = {name: size for name, size in peak.parts.items() if name not in _LASTING and size}
    parts = passing or dict(peak.parts)
    ranked = sorted(parts, key=lambda name: -parts[name])
    largest = [ranked[0], *(name for name in ranked[1:2] if parts[name] > peak.total_bytes / 20)]
    holdings = " and ".join(
        f"{format_bytes(parts[name])} {_in_words(name, peak, workload)}" for name in largest
    )
    moment = _MOMENTS.get(peak.name, peak.name)
    text = f"The peak is {moment}: it holds {holdings}."
    best_by_part = (_remedy(remedies, peak, (name,)) for name in largest)
    best = max(filter(None, best_by_part), key=lambda remedy: remedy.saves_bytes, default=None)
    return f"{text} {_advice(best)}" if best else text


def _in_words(part: str, peak: Peak, workload: Workload) -> str:
    """What a part is, at this moment."""
    if part != "logits and loss":
        return _PARTS.get(part, part)
    width = " in fp32" if workload.kernels.logits_fp32 and workload.loss == "full" else ""
    other = "their gradient" if peak.name == "loss backward" else "their softmax"
    return f"of logits{width} with {other}"


def _advice(remedy: Switch) -> str:
    return f"{_BEST}{remedy.name}, {format_bytes(-remedy.saves_bytes)} ({remedy.option})."


def _remedy(remedies: Sequence[Switch], peak: Peak, parts: tuple[str, ...]) -> Switch | None:
    """The switch that saves most through these parts of this peak; the cheaper of near equals."""
    now = sum(peak.parts.get(part, 0) for part in parts)
    useful = [
        switch
        for switch in remedies
        if now - _at(switch.estimate, peak.name, parts) > max(0.1 * now, 0.5 * switch.saves_bytes)
    ]
    if not useful:
        return None
    best = max(switch.saves_bytes for switch in useful)
    close = [switch for switch in useful if switch.saves_bytes >= 0.85 * best]
    return min(close, key=lambda switch: (switch.tier, -switch.saves_bytes))


def _at(estimate: Estimate, name: str, parts: tuple[str, ...]) -> int:
    """Bytes of the parts at the moment `name` of the fullest stage there."""
    sizes = [
        sum(peak.parts.get(part, 0) for part in parts)
        for stage in estimate.stages
        for peak in stage.peaks
        if peak.name == name
    ]
    return max(sizes, default=0)


def _states(estimate: Estimate, peak: Peak, workload: Workload, remedies: Sequence[Switch]) -> str:
    size = sum(peak.parts.get(part, 0) for part in _STATES)
    share = size / max(1, estimate.allocated_bytes)
    if share < 0.5:
        return ""
    states = "The frozen weights and the adapters' states"
    if not workload.lora_rank:
        states = "Weights, gradients and optimizer states"
    text = f"{states} hold {format_bytes(size)}, {share:.0%} of what is allocated."
    remedy = _remedy(remedies, peak, _STATES)
    if remedy is None:
        return f"{text} No switch on this many GPUs lowers them without changing the result."
    return f"{text} {_advice(remedy)}"


def _runner_up(estimate: Estimate) -> str:
    """Name the second peak when it is near: lowering the first alone gains only the gap."""
    ranked = sorted((estimate.peaks or {}).items(), key=lambda item: -item[1])
    if len(ranked) < 2 or not ranked[0][1]:
        return ""
    gap = ranked[0][1] - ranked[1][1]
    if gap > _CLOSE * ranked[0][1]:
        return ""
    moment = _MOMENTS.get(ranked[1][0], ranked[1][0])
    return (
        f"Close behind, {format_bytes(gap)} lower: {moment}. What lowers only the first peak "
        "gains no more than that."
    )


def _trap(workload: Workload, strategy: Strategy, estimate: Estimate) -> str:
    """Accumulation without synchronisation keeps whole gradients on every rank (+4 bytes each)."""
    sharded = strategy.shard_ranks > 1 and (strategy.zero_stage in {None, 2, 3})
    if not sharded or strategy.sync_every_micro_batch is not False or workload.accumulate == 1:
        return ""
    size = format_bytes(estimate.parts.get("gradients", 0))
    return (
        f"Accumulating without synchronisation keeps unsharded gradients on every rank, {size}: "
        "reduce after every micro-batch (sync_every_micro_batch=True) to shard them again."
    )


def _verdict(estimate: Estimate, job: Job) -> str:
    if estimate.headroom_bytes is None or isinstance(job.cluster, str):
        return ""
    if leaves_headroom(estimate):
        return ""
    text = f"It misses the card by {format_bytes(-estimate.headroom_bytes)}."
    if estimate.headroom_bytes >= 0:
        free = format_bytes(estimate.headroom_bytes)
        text = f"It leaves {free} free: too little to count as fitting."
    if estimate.fits:
        text = f"It fits, with less than the headroom of {HEADROOM:.0%} of the card free."
    chosen = switches_that_fit(job)
    if not chosen:
        return f"{text} No combination of switches on this many GPUs makes it fit."
    names = " + ".join(dict.fromkeys(switch.name for switch in chosen))
    left = format_bytes(chosen[-1].estimate.headroom_bytes)
    return f"{text} With {names} it fits, {left} free; the result stays the same."
