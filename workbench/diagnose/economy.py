"""Money: no checkpoint, checkpoints too far apart for interruptions, unused GPUs."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from statistics import fmean, median

from workbench.diagnose.evidence import Evidence
from workbench.estimate.interruptions import checkpoint_interval
from workbench.storage.mirror_state import MirrorState, read_mirror
from workbench.store.commands import command_for
from workbench.store.files import LineReader
from workbench.store.findings import Finding
from workbench.units import format_seconds

_HOUR = 3600.0
_SPOT_MEAN_HOURS = 8.0  # between interruptions, where nothing better is known: the articles' case
_MISSED = 3  # checkpoints in a row that did not arrive: one or two may be under way
_FACTOR = 3.0  # the cost of a wrong interval is flat: three times too long wastes as much again


def no_checkpoint(evidence: Evidence) -> Iterator[Finding]:
    """An hour of training that nothing could be resumed from."""
    facts = evidence.facts
    if evidence.run.rehearsal is not None:  # it saves nothing
        return
    if facts.checkpoints or facts.elapsed_seconds < _HOUR or not evidence.steps_seen:
        return
    yield Finding(
        kind="no-checkpoint",
        step=evidence.steps,
        confidence=0.8,
        evidence=f"{format_seconds(facts.elapsed_seconds)} and {evidence.steps} steps without a "
        "checkpoint.",
        cause="The script saves only at the end, or not at all.",
        next="Save every few hundred steps (--checkpoint-every N in the recipes, "
        "accelerator.save_state in your own script).",
    )


def checkpoint_rate(evidence: Evidence) -> Iterator[Finding]:
    """Checkpoints much further apart than Young's interval for the rate of interruptions."""
    times = sorted(
        checkpoint.saved_at
        for checkpoint in evidence.facts.checkpoints
        if checkpoint.saved_at is not None and not checkpoint.by_script
    )
    recovery = evidence.run.recovery
    attempts = evidence.facts.attempt
    if len(times) < 2 or not (recovery.get("preemption") or attempts > 1):
        return
    gaps = [after - before for before, after in itertools.pairwise(times)]
    gap, hold = median(gaps), _saving_seconds(evidence)
    seen = evidence.facts.elapsed_seconds / _HOUR / (attempts - 1) if attempts > 1 else None
    hours = min(seen, _SPOT_MEAN_HOURS) if seen else _SPOT_MEAN_HOURS
    if hold is None or gap <= 0 or hours <= 0:
        return
    best = checkpoint_interval(hold, hours)
    if gap < evidence.bound("checkpoint-interval", None, _FACTOR, 2.0) * best or gap < 60:
        return
    basis = f"one interruption in {hours:.1f} h as seen here" if seen else f"{hours:.0f} h assumed"
    yield Finding(
        kind="checkpoint-interval",
        confidence=0.6,
        evidence=f"Checkpoints are {format_seconds(gap)} apart; Young's interval is "
        f"{format_seconds(best)} (each save costs {format_seconds(hold)}; {basis}).",
        cause="An interruption loses half an interval on average, more than saving costs.",
        next=f"Save every {format_seconds(best)}.",
    )


def _saving_seconds(evidence: Evidence) -> float | None:
    """What a checkpoint holds the training up, as the hook measured."""
    lines = LineReader(evidence.paths.saved).read()
    seconds = [line["seconds"] for line in lines if isinstance(line.get("seconds"), int | float)]
    return median(seconds) if seconds else None


def idle(evidence: Evidence) -> Iterator[Finding]:
    """Nothing has been computed for as long as the recovery policy allows."""
    recovery = evidence.run.recovery
    allowed = 60.0 * float(recovery.get("idle_minutes") or 10.0)
    since = evidence.idle_seconds
    if since is None or since < allowed:
        return
    gpus = evidence.run.device == "cuda"
    price = evidence.run.usd_per_hour
    cost = "" if price is None else f" at {price:.2f} USD an hour"
    yield Finding(
        kind="idle-gpus" if gpus else "idle-machine",
        step=evidence.steps or None,
        confidence=0.9,
        evidence=f"No {'GPU' if gpus else 'core'} of the run was active for "
        f"{format_seconds(since)}{cost}.",
        cause="The run hangs, waits, or has finished its work without exiting.",
        next="Stop the run, or let --on-idle stop the machine.",
    )


def mirror(evidence: Evidence) -> Iterator[Finding]:
    """The copy elsewhere is not kept in step: a machine that vanishes takes the rest with it."""
    state = None if evidence.run.mirror is None else read_mirror(evidence.paths)
    now = time.time()
    if state is None:
        return
    if (problem := state.problem(now)) is None:
        yield from _never_whole(evidence, state)
        return
    since = state.last_good_at
    last = (
        "Nothing has arrived there yet"
        if since is None
        else (
            f"The last good copy is {format_seconds(now - since)} old"
            + ("" if state.last_step is None else f" and holds step {state.last_step}")
        )
    )
    yield Finding(
        kind="mirror-behind",
        confidence=0.95,
        evidence=f"{problem} {last}.",
        cause="The address, the credentials in the environment or the network refuse the copy."
        if state.failing_since is not None
        else "The process that mirrors hangs or is gone: see the end of logs/mirror.log.",
        next="Training continues, and the copy is tried again. See why at once: "
        f"{command_for(evidence.paths.directory, 'push', state.url)}",
    )


def unused_gpu(evidence: Evidence) -> Iterator[Finding]:
    """A GPU that does nothing while its peers train."""
    if evidence.steps_seen < 20:
        return
    utilisation: dict[str, float] = {}
    samples = 0
    for device in evidence.fresh_devices():
        used = [reading.util for reading in device.readings if reading.util is not None]
        if len(used) >= 60:
            utilisation[evidence.device_name(device.node, device.index, device.part)] = fmean(used)
            samples = max(samples, len(used))
    unused = [name for name, value in utilisation.items() if value < 1.0]
    if not unused or max(utilisation.values()) < 10.0:
        return
    names = ", ".join(unused[:8])
    yield Finding(
        kind="unused-gpu",
        confidence=0.8,
        evidence=f"{names} did nothing in the last {samples} samples; "
        f"{len(utilisation) - len(unused)} others work.",
        cause=f"{len(utilisation)} GPUs are visible, {evidence.processes} processes were "
        "requested.",
        next="Use one process per GPU, or rent fewer GPUs.",
    )


def _never_whole(evidence: Evidence, state: MirrorState) -> Iterator[Finding]:
    """Each new checkpoint is removed here before all of it is there: no newer one ever arrives."""
    if state.final:
        return
    last = -1 if state.last_step is None else state.last_step
    lines = LineReader(evidence.paths.saved).read()
    steps = (line.get("step") for line in lines)
    newer = {step for step in steps if isinstance(step, int) and step > last}
    here = {saved.step for saved in evidence.facts.checkpoints if saved.step in newer}
    if len(newer) < _MISSED or len(newer - here) < _MISSED - 1:
        return
    there = "no checkpoint" if last < 0 else f"step {last}"
    yield Finding(
        kind="mirror-behind",
        step=max(newer),
        confidence=0.8,
        evidence=f"{len(newer)} newer checkpoints were saved, up to step {max(newer)}, and the "
        f"copy at {state.url} still holds {there}; {len(newer - here)} of them are gone here.",
        cause="Sending one takes longer than it is kept: it is removed before all of it is there.",
        next="Keep more of them (--keep-last 3 in the recipes, save_total_limit=3 in a Trainer), "
        "or save less often (--checkpoint-every N).",
    )


RULES = (no_checkpoint, checkpoint_rate, mirror, idle)
