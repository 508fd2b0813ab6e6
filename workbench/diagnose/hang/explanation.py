"""A standstill in words: who is to blame, what its peers wait for, and what helps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from workbench.diagnose.facts import RankFacts
from workbench.diagnose.hang.flight_recorder import LastCollective, compare, mismatched
from workbench.diagnose.hang.stacks import Stack, groups
from workbench.store.findings import Finding
from workbench.units import format_seconds

LONGEST_WAIT = 900.0
"""Seconds after which a rank that may only be late is taken to hang."""
_STOPPED = {"T", "t"}
_DISK = "a disk or a network file system (state D)"
_DISK_ACTION = "Look at the storage the rank reads or writes; the run continues when it answers."
_PHASE_ORDER = {"starting": 0, "forward": 1, "backward": 2, "saving": 3, "ended": 4}


@dataclass(slots=True)
class Standstill:
    """What was found out about ranks that stand still."""

    step: int | None
    """Optimizer steps that the slowest rank has done; None without pulses."""
    steps: int
    """Optimizer steps that were read from the metrics."""
    ranks: Mapping[int, RankFacts]
    silent: Mapping[int, float]
    stacks: Mapping[int, Stack]
    collectives: Mapping[int, LastCollective]
    busy: set[int]
    """Ranks that use the processor."""
    mute: set[int]
    """Ranks that did not write their collectives while others did: no thread of theirs runs."""
    saved_step: int | None = None
    """Of the newest checkpoint that could be resumed from; None = there is none."""
    natives: dict[int, str] = field(default_factory=dict[int, str])
    """Innermost native frames, where py-spy could look."""

    @property
    def living(self) -> tuple[int, ...]:
        """Ranks that should be training."""
        return tuple(rank for rank, facts in self.ranks.items() if facts.alive and not facts.ended)

    @property
    def stopped(self) -> tuple[int, ...]:
        """Ranks whose process is stopped: nothing they could do."""
        return tuple(rank for rank in self.living if self.ranks[rank].process_state in _STOPPED)

    @property
    def behind(self) -> tuple[int, ...]:
        """Ranks that have come less far than others by their pulse; () when all are level."""
        places = {
            rank: (pulse.steps, _PHASE_ORDER[pulse.phase])
            for rank in self.living
            if (pulse := self.ranks[rank].pulse) is not None
        }
        least = min(places.values(), default=None)
        slowest = tuple(rank for rank, place in places.items() if place == least)
        return slowest if len(slowest) < len(places) else ()

    @property
    def deadlock(self) -> bool:
        """Whether every rank waits for its peers, but not all at the same place."""
        if mismatched(self.collectives) and not self.stopped:
            return True
        stacks = [self.stacks[rank] for rank in self.living if rank in self.stacks]
        if len(stacks) < 2 or len(stacks) < len(self.living) or self.stopped:
            return False
        return (
            all(stack.waits_for_peers for stack in stacks)
            and len({stack.group for stack in stacks}) > 1
        )

    @property
    def suspects(self) -> tuple[int, ...]:
        """Whom the others wait for, the likeliest first; () when all stand alike."""
        candidates = (self.stopped, self._mute, self._elsewhere, self.behind, self._late)
        return next((ranks for ranks in candidates if ranks), self._outliers)

    @property
    def _mute(self) -> tuple[int, ...]:
        mute = tuple(rank for rank in self.living if rank in self.mute)
        return mute if len(mute) < len(self.living) else ()

    @property
    def _elsewhere(self) -> tuple[int, ...]:
        """Ranks that stand in no call which their peers must join."""
        ranks = [rank for rank in self.living if rank in self.stacks]
        away = tuple(rank for rank in ranks if not self.stacks[rank].waits_for_peers)
        return away if len(away) < len(self.living) else ()

    @property
    def _late(self) -> tuple[int, ...]:
        return compare(self.collectives)[1]

    @property
    def _outliers(self) -> tuple[int, ...]:
        by_place = groups({rank: self.stacks[rank] for rank in self.living if rank in self.stacks})
        has_outliers = len(by_place) > 1 and len(by_place[0][1]) < len(by_place[-1][1])
        return by_place[0][1] if has_outliers else ()

    @property
    def loading(self) -> bool:
        """Whether all ranks wait for their data loaders."""
        stacks = [self.stacks[rank] for rank in self.living if rank in self.stacks]
        return bool(stacks) and all(stack.action == "data loading" for stack in stacks)

    @property
    def wait_apart(self) -> bool:
        """Whether none stands in a call that other ranks must join, as far as can be told."""
        stacks = [self.stacks.get(rank) for rank in self.living]
        return len(self.ranks) == 1 or all(
            stack is not None and stack.awaited is not None and not stack.may_wait_for_peers
            for stack in stacks or [None]
        )

    @property
    def interpreter_held(self) -> bool:
        """Whether the suspect's other threads do not run either: its peers' wrote their dump."""
        if not self.suspects or self.stopped or self.deadlock:
            return False
        rank = self.suspects[0]
        return rank in self.mute

    @property
    def kind(self) -> str:
        """One of the four ways to stand still."""
        if self.stopped:
            return "stopped-rank"
        if self.deadlock:
            return "deadlock"
        return "gil-held" if self.interpreter_held else "hang"

    @property
    def may_end(self) -> bool:
        """Whether those that hold the run up may only be late: they stand in no call of all.

        An evaluation of one rank, a download or a long call in C looks like this.
        """
        if self.stopped or self.deadlock or not (self.suspects or self.loading or self.wait_apart):
            return False
        stacks = (self.stacks.get(rank) for rank in self.suspects[:1])
        return not any(stack is not None and stack.waits_for_peers for stack in stacks)

    def place(self, rank: int) -> str:
        """Where a rank stands: its stack, else its phase."""
        if rank in self.stacks:
            return self.stacks[rank].place
        pulse = self.ranks[rank].pulse
        return f"{pulse.phase} of step {pulse.steps + 1}" if pulse else "an unknown place"


def describe(still: Standstill, seconds: float, patience: str) -> Finding:
    """The finding of a hang."""
    suspect = still.suspects[0] if still.suspects else None
    done = still.step if still.step is not None else still.steps
    late = still.may_end and seconds < LONGEST_WAIT
    cause, action, confidence = _cause(still, suspect, done + 1, late=late)
    numbers = [f"No rank has ended a step for {format_seconds(seconds)} (allowed: {patience})"]
    if len(still.silent) < len(still.living):
        ranks = ", ".join(str(rank) for rank in sorted(still.silent))
        numbers = [f"Rank {ranks} is silent for {format_seconds(seconds)} (allowed: {patience})"]
    places = [f"rank {rank}: {still.place(rank)}" for rank in still.living[:8]]
    numbers += ["; ".join(places)]
    if compare(still.collectives)[0]:
        numbers.append(compare(still.collectives)[0])
    numbers += [f"rank {rank} natively in {line}" for rank, line in still.natives.items()]
    return Finding(
        kind=still.kind,
        rank=suspect,
        step=done + 1,
        severity="warning" if late else "error",
        confidence=confidence,
        evidence="; ".join(numbers) + ".",
        cause=cause,
        next=action,
    )


def long_step(still: Standstill, seconds: float, program: tuple[int, int, str] | None) -> Finding:
    """That no step has ended for `seconds`, by ranks at work.

    `program`: rank, pid and name of a program that a rank started and waits for.
    """
    done = still.step if still.step is not None else still.steps
    places = "; ".join(f"rank {rank}: {still.place(rank)}" for rank in still.living[:8])
    cause = "The ranks work: a long evaluation or computation, or a loop that never ends."
    action = "Wait for it, or look at the lines named; a stop waits for the ranks' next step too."
    if program is not None:
        rank, pid, name = program
        cause = f"Rank {rank} waits for a program that it started: {name} (pid {pid})."
        action = f"Wait for it, or look at what pid {pid} does. What uploads can do so in a thread."
    return Finding(
        kind="long-step",
        rank=None if program is None else program[0],
        step=done + 1,
        severity="note",
        confidence=0.6,
        evidence=f"No rank has ended a step for {format_seconds(seconds)}; {places}.",
        cause=cause,
        next=action,
    )


def _cause(
    still: Standstill, suspect: int | None, step: int, *, late: bool
) -> tuple[str, str, float]:
    stop = "Stop the run and start it again: there is no checkpoint to resume from"
    if still.saved_step is not None:
        stop = f"Stop the run and resume it from its checkpoint of step {still.saved_step}"
    if still.stopped:
        pid = (still.ranks[still.stopped[0]].process or {}).get("pid")
        return (
            (
                f"Rank {still.stopped[0]}'s process (pid {pid}) is stopped (state T): SIGSTOP, a "
                f"debugger or a suspended container.{_peers_wait(still, only=True)}"
            ),
            f"Continue it with `kill -CONT {pid}`, or {stop[0].lower()}{stop[1:]}.",
            0.98,
        )
    if still.deadlock:
        return _deadlock(still)
    if suspect is None:
        return _all_alike(still, step, stop, late=late)
    return _one_rank(still, suspect, step, stop, late=late)


def _deadlock(still: Standstill) -> tuple[str, str, float]:
    ranks = still.living[:8]
    waits = ", ".join(
        f"rank {rank} waits in {still.place(rank)}{_call(still, rank)}" for rank in ranks
    )
    action = (
        "Make every rank call the same collectives in the same order: no collective inside "
        "`if rank == 0`, the same number of batches on every rank (drop_last=True or the Join "
        "context manager). Look at the lines named; this standstill never ends by itself."
    )
    return (
        f"Deadlock: {waits}. The ranks called different collectives and wait for one another.",
        action,
        0.97 if mismatched(still.collectives) else 0.9,
    )


def _all_alike(still: Standstill, step: int, stop: str, *, late: bool) -> tuple[str, str, float]:
    """No rank is behind another: all wait for each other, or each for something of its own."""
    alone = len(still.ranks) == 1 and bool(still.living)
    who = "The only rank" if alone else "All ranks"
    place = still.place(still.living[0]) if still.living else "an unknown place"
    if still.loading:
        waits = "waits for its data loader" if alone else "wait for their data loaders"
        return f"{who} {waits}, in {place}.", _loader_action(stop), 0.5
    if still.living and all(still.ranks[rank].process_state == "D" for rank in still.living):
        waits = "waits" if alone else "wait"
        return f"{who} {waits} for {_DISK}, in {place}.", _DISK_ACTION, 0.8
    if alone:
        unfinished = _unfinished_work(still, still.living[0], step)
        text = f"{unfinished}: it stands in {place}{_awaited(still, still.living[0])}."
        return text, _line_action(stop, late=late), 0.85 if still.stacks else 0.5
    if still.wait_apart:
        text = f"{who} stand in {place}{_awaited(still, still.living[0])}, not for one another."
        return text, _line_action(stop, late=late), 0.7
    network = "the network between them failed, or a peer is lost"
    cause = f"{who} wait at the same place: {network}."
    stacks = [still.stacks[rank] for rank in still.living if rank in still.stacks]
    if stacks and not any(stack.may_wait_for_peers for stack in stacks):
        cause = f"{who} stand in {place}. If that waits for other ranks, {network}."
    network_action = "Look at the network interface (NCCL_DEBUG=INFO, NCCL_SOCKET_IFNAME)."
    return cause, f"{stop}. {network_action}", 0.5


def _awaited(still: Standstill, rank: int) -> str:
    """`` and waits for an item of a queue``."""
    awaited = still.stacks[rank].awaited if rank in still.stacks else None
    return "" if awaited is None else f" and waits for {awaited}"


def _peers_wait(still: Standstill, *, only: bool = False) -> str:
    if len(still.ranks) == 1:
        return ""
    return f" The other ranks {'only ' if only else ''}wait for it."


def _loader_action(stop: str) -> str:
    return (
        "Look at the loader's worker processes (dead, stopped, or waiting for storage or a "
        "network): they use no processor and read no file. The run continues when they "
        f"deliver. Else {stop[0].lower()}{stop[1:]}."
    )


def _line_action(stop: str, *, late: bool) -> str:
    if not late:
        return f"{stop}. Look at that line."
    return (
        "Look at that line: what only takes long there (an evaluation, a download, a save) "
        f"ends by itself, and the run continues. Else {stop[0].lower()}{stop[1:]}."
    )


def _call(still: Standstill, rank: int) -> str:
    """Which collective it is, counted by the rank itself: `` (barrier, its call 5)``."""
    collective = still.collectives.get(rank)
    return "" if collective is None else f" ({collective.name}, call {collective.number})"


def _unfinished_work(still: Standstill, suspect: int, step: int) -> str:
    """What the rank has not done yet, as its pulse and its stack tell."""
    pulse, stack = still.ranks[suspect].pulse, still.stacks.get(suspect)
    if pulse is not None and pulse.phase == "backward":
        if stack is None or stack.action == "backward":
            return f"Rank {suspect} has not finished the backward pass of step {step}"
        return f"Rank {suspect} finished the backward pass of step {step}, but not the step"
    if step == 1:
        return f"Rank {suspect} has not entered its first backward pass"
    return f"Rank {suspect} has not entered the backward pass of step {step}"


def _one_rank(
    still: Standstill, suspect: int, step: int, stop: str, *, late: bool
) -> tuple[str, str, float]:
    place, state = still.place(suspect), still.ranks[suspect].process_state
    unfinished = _unfinished_work(still, suspect, step)
    if state == "D":
        return f"{unfinished}: it waits for {_DISK}, in {place}.", _DISK_ACTION, 0.8
    if suspect in still.stacks and still.stacks[suspect].action == "data loading":
        text = f"{unfinished}: it waits for its data loader, in {place}."
        return text, _loader_action(stop), 0.85
    gil_text = _awaited(still, suspect)
    if still.interpreter_held:
        gil_text = (
            ", and none of its threads runs: C code there holds Python's interpreter lock (GIL)"
        )
    loop = " and uses the processor" if suspect in still.busy else ""
    return (
        f"{unfinished}: it stands in {place}{loop}{gil_text}.{_peers_wait(still)}",
        _line_action(stop, late=late),
        0.85 if suspect in still.stacks else 0.6,
    )
