"""Where the time goes: a slow rank, waiting for data, communication, idle GPUs, slowing down."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from statistics import fmean, median

from workbench.diagnose.evidence import Evidence, mean
from workbench.observe.events import StepRow
from workbench.store.findings import Finding
from workbench.units import format_seconds

_STEPS = 40  # over which ranks are compared
_LEAST_SECONDS = 20.0  # long steps need fewer of them
_DATA_STEPS = 15
_PAUSE = 3.0  # times the usual step


def straggler(evidence: Evidence) -> Iterator[Finding]:
    """A rank that enters the backward pass later than the others, step after step.

    Step times cannot show it: all ranks end a step together, the fast ones after waiting. Where
    the order of arrival at the collectives is known, `arrival_order` tells more.
    """
    if evidence.arrivals:
        return
    if evidence.processes < 2 or (evidence.strategy("pp") or 1) > 1:
        return  # pipeline stages enter their backward passes one after another by design
    rows = _compared(evidence, evidence.latest(_STEPS * 3))
    if rows is None:
        return
    total = sum(row.step_seconds or 0.0 for row in rows)
    first = [min(row.backward_at.values()) for row in rows]
    late = {rank: _lateness(rows, first, rank) for rank in rows[0].backward_at}
    rank = max(late, key=lambda rank: sum(late[rank]))
    lost, everyone = sum(late[rank]), sum(sum(seconds) for seconds in late.values())
    share = lost / total if total else 0.0
    middle = total / len(rows)
    often = sum(seconds > 0.15 * middle for seconds in late[rank])
    bound = evidence.bound("straggler", rank, 0.25, 0.1)
    if share < bound or often < max(5, 0.1 * len(rows)) or lost < 0.7 * everyone:
        return
    spread = median(max(row.ended_at.values()) - min(row.ended_at.values()) for row in rows)
    if spread > 0.5 * lost / len(rows):
        return  # they do not end their steps together: no rank waits for another
    if evidence.has_loader and _waits_for_data(rows, rank) > 0.5 * lost:
        return  # its loader is slow, not the rank: `input_bound` says so
    yield _straggler(evidence, rank, rows, late[rank], share)


def _compared(evidence: Evidence, rows: list[StepRow]) -> list[StepRow] | None:
    """The latest steps that all ranks reported; None while there are too few to compare."""
    ranks = evidence.processes
    reported = [
        row
        for row in rows
        if len(row.backward_at) == ranks == len(row.ended_at) and row.step_seconds
    ]
    if len(reported) < 10:
        return None
    enough = len(reported) >= _STEPS or reported[-1].time - reported[0].time >= _LEAST_SECONDS
    return reported if enough else None


def _lateness(rows: list[StepRow], first: list[float], rank: int) -> list[float]:
    """Seconds after the first rank, per step; no more than the step took (clocks may jump)."""
    return [
        min(row.backward_at[rank] - entered, row.step_seconds or 0.0)
        for row, entered in zip(rows, first, strict=True)
    ]


def _waits_for_data(rows: list[StepRow], rank: int) -> float:
    """Seconds that the rank waited for data beyond what the least waiting one did."""
    return sum(
        row.data_seconds.get(rank, 0.0) - min(row.data_seconds.values())
        for row in rows
        if row.data_seconds
    )


def _straggler(
    evidence: Evidence, rank: int, rows: list[StepRow], late: list[float], share: float
) -> Finding:
    own = {rank: _own_seconds(rows, rank) for rank in rows[0].backward_at}
    others_seconds = [value for number, value in own.items() if number != rank and value]
    ratio = own[rank] / median(others_seconds) if others_seconds and own[rank] else None
    times = "" if ratio is None else f", {ratio:.1f} times the others' time before backward"
    facts = evidence.facts.ranks.get(rank)
    stopped = facts is not None and facts.process_state in {"T", "t"}
    return Finding(
        kind="straggler",
        rank=rank,
        step=rows[0].step,
        confidence=min(0.95, 0.6 + share / 2),
        evidence=f"Rank {rank} enters the backward pass {format_seconds(fmean(late))} after the "
        f"first rank (mean of {len(rows)} steps{times}): {share:.0%} of the step time is waiting "
        "for it.",
        cause=f"Rank {rank} is slower than its peers, which wait for it: "
        + (
            "its process is stopped repeatedly."
            if stopped
            else "a shared or throttled processor or GPU, more work per batch, or other programs "
            "on its device."
        ),
        next=f"Compare rank {rank}'s device and load with the others' (clocks, temperature, other "
        "processes, cgroup limits); give it equal batches, or exclude that device.",
    )


def _own_seconds(rows: list[StepRow], rank: int) -> float:
    """Mean time from the end of a step to the next entry of backward: the rank's own work."""
    pairs = pairwise(rows)
    own = [
        after.backward_at[rank] - before.ended_at[rank]
        for before, after in pairs
        if after.step == before.step + 1 and rank in before.ended_at
    ]
    return mean([seconds for seconds in own if seconds > 0])


def input_bound(evidence: Evidence) -> Iterator[Finding]:
    """Three tenths of the step and more spent waiting for data."""
    rows = [row for row in evidence.latest(60) if row.data_seconds and row.step_seconds]
    if not evidence.has_loader:
        if evidence.run.device == "cuda":
            return  # a wait for the GPU after a step is a wait for its work; see low_utilisation
        rows = _without_pauses(rows)
    if len(rows) < _DATA_STEPS:
        return
    total = sum(row.step_seconds or 0.0 for row in rows)
    ranks = sorted(rows[-1].data_seconds)
    shares = {rank: sum(row.data_seconds.get(rank, 0.0) for row in rows) / total for rank in ranks}
    worst = max(shares, key=lambda rank: shares[rank])
    other_shares = [shares[rank] for rank in ranks if rank != worst]
    single_rank = worst if other_shares and max(other_shares) < shares[worst] / 2 else None
    if single_rank is not None and evidence.arrivals:
        return  # `arrival_order` knows whether the others wait for it
    if not evidence.has_loader:
        # All that is known is that the forward pass began late: of one rank `straggler` tells.
        if single_rank is None and shares[worst] >= evidence.bound("input-bound", None, 0.5, 0.4):
            yield _between_steps(rows, shares[worst], total)
    elif shares[worst] >= evidence.bound("input-bound", single_rank, 0.3, 0.2):
        yield _input_bound(rows, single_rank, shares[worst], total)


def _without_pauses(rows: list[StepRow]) -> list[StepRow]:
    """Without the few steps that an evaluation or a save stands before: it is no wait for data."""
    usual = _PAUSE * median([row.step_seconds or 0.0 for row in rows]) if rows else 0.0
    regular = [row for row in rows if (row.step_seconds or 0.0) <= usual]
    return regular if len(rows) - len(regular) <= len(rows) // 10 else rows


def _input_bound(rows: list[StepRow], rank: int | None, share: float, total: float) -> Finding:
    subject = f"Rank {rank} waits" if rank is not None else "The ranks wait"
    waited, step = share * total / len(rows), total / len(rows)
    cause = "The data loaders are slower than the training."
    if rank is not None:
        cause = f"The data loader of rank {rank} is slow; its peers wait with it."
    where = f"; look at rank {rank}'s storage and cores" if rank is not None else ""
    return Finding(
        kind="input-bound",
        rank=rank,
        step=rows[0].step,
        confidence=0.9,
        evidence=f"{subject} for data {share:.0%} of the step time ({format_seconds(waited)} of "
        f"{format_seconds(step)}, {len(rows)} steps).",
        cause=cause,
        next="Raise num_workers and prefetch_factor, pin memory, and move decoding or tokenising "
        f"out of the loop{where}.",
    )


def _between_steps(rows: list[StepRow], share: float, total: float) -> Finding:
    """Where no loader is known: what the script does there is not known either."""
    between, step = share * total / len(rows), total / len(rows)
    return Finding(
        kind="input-bound",
        step=rows[0].step,
        severity="note",
        confidence=0.4,
        evidence=f"Between a step and the next forward pass {share:.0%} of the step time goes by "
        f"({format_seconds(between)} of {format_seconds(step)}, {len(rows)} steps).",
        cause="The script makes or fetches its batches there, logs, or waits for something else.",
        next="Look at what the loop does between optimizer.step() and the model's call; batches "
        "can be made ahead, by a DataLoader's workers for example.",
    )


def communication_bound(evidence: Evidence) -> Iterator[Finding]:
    """The backward pass with its all-reduce takes many times the forward pass on all ranks.

    A slow backward pass of one rank looks the same: only where no one's order of arrival is known.
    """
    if evidence.arrivals:
        return
    if evidence.processes < 2 or (evidence.strategy("pp") or 1) > 1:
        return
    if evidence.run.device == "cuda":
        return  # what the CPU queues in a moment tells nothing of how long the GPU works at it
    rows = _compared(evidence, evidence.latest(_STEPS * 2))
    if rows is None:
        return
    tails: list[float] = []
    heads: list[float] = []
    for before, after in pairwise(rows):
        if after.step != before.step + 1 or not after.ended_at or not before.ended_at:
            continue
        last = max(after.backward_at.values())
        tails.append(max(after.ended_at.values()) - last)
        data = min(after.data_seconds.values(), default=0.0)
        heads.append(last - max(before.ended_at.values()) - data)
    if len(tails) < 10:
        return
    tail, head = median(tails), median(heads)
    step = tail + max(head, 0.0)
    # A backward pass takes two forward passes, three with recomputation; the optimizer is small
    # against both. Very short steps are overhead of other kinds.
    if step < 0.02 or head <= 0 or tail < evidence.bound("communication-bound", None, 8, 6) * head:
        return
    yield Finding(
        kind="communication-bound",
        step=rows[0].step,
        severity="note",
        confidence=0.4,
        evidence=f"From the last rank's entry of backward to the step's end {format_seconds(tail)} "
        f"pass, against {format_seconds(head)} of forward pass; 2 to 3 times are usual.",
        cause="The exchange of gradients takes most of the step (or a very large optimizer step).",
        next="Accumulate more micro-batches per step, shard less, use a faster link, or a "
        "communication hook (bf16 gradients).",
    )


def slow_down(evidence: Evidence) -> Iterator[Finding]:
    """Steps that take half as long again as at the beginning of this attempt."""
    early, rows = evidence.early_seconds, evidence.latest(64)
    if len(early) < 64 or evidence.steps_seen < 300 or len(rows) < 64:
        return
    first = median(early)
    now = median([row.step_seconds for row in rows if row.step_seconds] or [0.0])
    if first < 1e-3 or now < evidence.bound("slow-down", None, 1.5, 1.4) * first:
        return
    node = _growing_node(evidence)
    yield Finding(
        kind="slow-down",
        step=rows[0].step,
        confidence=0.6,
        evidence=f"A step takes {format_seconds(now)} (median of 64); it took "
        f"{format_seconds(first)} at the start.",
        node=node if evidence.run.nodes > 1 else None,
        cause=f"The run's memory{evidence.on_node(node)} grows with each step (a reference is "
        "kept)."
        if node is not None
        else "Other programs on the machine, throttling, longer sequences, or a growing graph.",
        next="Look at the clocks, the host's load and the memory over time; keep losses as "
        "loss.detach() or loss.item().",
    )


def _growing_node(evidence: Evidence) -> int | None:
    """The first machine on which a rank takes more memory with every step; None = on none."""
    curves = (*evidence.host_memory.items(), *evidence.gpu_memory.items())
    growing = [evidence.node_of(rank) for rank, curve in curves if curve.growth() is not None]
    return min(growing, default=None)


def low_utilisation(evidence: Evidence) -> Iterator[Finding]:
    """GPUs that wait most of the time while training continues.

    They also wait for a checkpoint that is written: only what was read since the steps flow counts.
    """
    since = evidence.flowing_since
    if evidence.steps_seen < 10 or since is None or evidence.is_pause(evidence.facts.time):
        return
    working: dict[str, float] = {}
    for device in evidence.fresh_devices():
        minute = (reading for reading in device.minute if reading.time >= since)
        used = [reading.util for reading in minute if reading.util is not None]
        if len(used) >= 10 and fmean(used) >= 3.0:  # idle ones: `economy`
            working[evidence.device_name(device.node, device.index, device.part)] = fmean(used)
    if not working or fmean(working.values()) > evidence.bound("low-utilisation", None, 30, 40):
        return
    waiting = ("input-bound", None) in evidence.standing
    yield Finding(
        kind="low-utilisation",
        step=evidence.steps,
        confidence=0.7,
        evidence=f"The GPUs were busy {fmean(working.values()):.0f} % of the last minute "
        f"({', '.join(f'{name} {value:.0f} %' for name, value in list(working.items())[:8])}).",
        cause="The GPUs wait for data."
        if waiting
        else "The GPUs wait: small batches, a slow loader, or Python between the kernels.",
        next="Raise the micro-batch, compile the model, and look at the data wait.",
    )


def scaling(evidence: Evidence) -> Iterator[Finding]:
    """Less than 70 % of what the ranks would do alone, where that is known."""
    single_seconds, step_seconds = evidence.single_rank_seconds, evidence.step_seconds
    if evidence.processes < 2 or not single_seconds or not step_seconds or evidence.steps_seen < 30:
        return
    efficiency = single_seconds / step_seconds
    if efficiency >= evidence.bound("scaling", None, 0.70, 0.75):
        return
    yield Finding(
        kind="scaling",
        step=evidence.steps,
        severity="warning" if evidence.run.device == "cuda" else "note",
        confidence=0.6,
        evidence=f"A step of {evidence.processes} ranks takes {format_seconds(step_seconds)}; one "
        f"rank alone takes {format_seconds(single_seconds)} for its share: {efficiency:.0%} "
        "efficiency.",
        cause=_triage(evidence),
        next="Below 70 %: first remove stragglers and data wait, then accumulate more per step, "
        "then use fewer GPUs with a faster link.",
    )


def _triage(evidence: Evidence) -> str:
    kinds = {kind for kind, _ in evidence.standing}
    if not evidence.has_loader:  # then it is not known that they wait for data
        kinds.discard("input-bound")
    causes = (
        ("straggler", "One slow rank delays the others."),
        ("input-bound", "The data loaders do not keep up with more ranks."),
        ("communication-bound", "The exchange of gradients takes most of the step."),
    )
    other = "The ranks share cores, memory or links that a single rank has for itself."
    return next((cause for kind, cause in causes if kind in kinds), other)


RULES = (
    straggler,
    input_bound,
    communication_bound,
    slow_down,
    scaling,
)
