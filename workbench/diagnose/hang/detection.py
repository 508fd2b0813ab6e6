"""A hang: who has not entered step N, where that rank stands, and who only waits for it.

Silence alone is no hang: a validation, a long save or a compilation is silent too. So before
anything is said the ranks are asked for their stacks several times; a rank that moves is busy.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from workbench.diagnose.evidence import WARM_UP, Evidence
from workbench.diagnose.facts import Facts
from workbench.diagnose.hang.explanation import Standstill, describe, long_step
from workbench.diagnose.hang.flight_recorder import dumped, last_collective, request_dump
from workbench.diagnose.hang.stacks import NativeStack, Stack, answer, ask, request_stacks
from workbench.diagnose.hang.work import Work, awaited_program, work_of
from workbench.store.findings import Finding
from workbench.store.processes import boot_id
from workbench.store.schema import ProcessDoc
from workbench.units import format_seconds

LEAST_SECONDS = 15.0
STEPS_OF_SILENCE = 5
_WARM_UP_SECONDS = 300.0  # before the first steps are done: downloads, compilation, first batches
_SURE_SECONDS = 20.0  # before the first steps, where the stacks leave no doubt
_ASK_AGAIN_SECONDS = 15.0  # and longer each time
_ASK_AT = 0.4  # of the patience: so that the answers are there when it is over
_ASK_EVERY = 1.5
_ASKS = 5
_MORE_ASKS = 10  # of a rank that computes in C: its stack may be the same by chance
_BUSY_SHARE = 0.3  # of one core: less is waiting
_WAKES_PER_SECOND = 4.0  # of the main thread, our own questions left out: more is at work
_AFTER_BUSY_SECONDS = 30.0
_LONGEST_BUSY = 900.0  # a loop that waits for something by looking again and again looks busy
_WORK_SHARE = 0.05  # of one core: more than such a loop takes
_QUIET_PHASES = {"forward", "backward"}


def patience_seconds(evidence: Evidence) -> float:
    """How long a rank may be silent before it counts as hanging."""
    median = evidence.step_seconds
    if evidence.steps_seen < WARM_UP or median is None:
        return _WARM_UP_SECONDS
    return max(LEAST_SECONDS, STEPS_OF_SILENCE * median)


def _sure_seconds(evidence: Evidence, patience: float) -> float:
    """After how long a standstill is reported whose stacks leave no doubt."""
    grouped = [start.group_world_size for start in evidence.starts.values()]
    early = evidence.steps_seen < WARM_UP and sum(map(bool, grouped)) > 1
    return min(patience, _SURE_SECONDS) if early else patience


@dataclass(slots=True)
class HangWatch:
    """Follows one silence from its suspicion to its end."""

    requested_at: float | None = None
    begun_time: float = 0.0
    asks: int = 0
    offsets: dict[int, int] = field(default_factory=dict[int, int])
    stacks: dict[int, list[Stack]] = field(default_factory=dict[int, list[Stack]])
    cpu: dict[int, float] = field(default_factory=dict[int, float])
    wakes: dict[int, int] = field(default_factory=dict[int, int])
    begun_at: float = 0.0
    mute: set[int] = field(default_factory=set[int])
    natives: dict[int, NativeStack] = field(default_factory=dict[int, NativeStack])
    not_before: float = 0.0
    doubts: int = 0
    """How often the ranks were asked before their first steps without a sure answer."""
    finding: Finding | None = None
    work: dict[int, Work] = field(default_factory=dict[int, Work])
    program_worked_at: float | None = None
    """When a program for which a rank waits was last seen at work; None: no rank waits for one."""
    program_work: Work = field(default_factory=Work)
    long_step: Finding | None = None
    """That the ranks are at work in a step which takes long, as long as it does."""
    worked_at: float = 0.0
    """Monotonic seconds at which ranks that end no step were last seen at work."""

    def rule(self, evidence: Evidence) -> Iterator[Finding]:
        """Yield the hang while it lasts."""
        facts, patience = evidence.facts, patience_seconds(evidence)
        sure = _sure_seconds(evidence, patience)
        silent = silences(evidence, starting=sure < patience)
        longest = max(silent.values(), default=0.0)
        over = facts.stopping or facts.phase == "ended" or any(node.lost for node in facts.nodes)
        if over or longest < _ASK_AT * sure or any(rank.ended for rank in facts.ranks.values()):
            self._forget()
            self.long_step = self.program_worked_at = None
            return
        if facts.monotonic >= self.not_before:
            self._ask(evidence, silent)
            ready = longest >= sure and self.asks > _ASKS and not self._waiting(facts)
            if ready and self._stands(evidence, silent, patience, format_seconds(sure)):
                self.long_step = None
        if self.finding is not None:
            yield self.finding
            self._ask_the_mute(facts, evidence)
        elif self.long_step is not None:
            yield self.long_step

    def _stands(
        self, evidence: Evidence, silent: Mapping[int, float], patience: float, allowed: str
    ) -> bool:
        """Whether the ranks hang, by their answers; then `finding` is current."""
        standstill = self._standstill(evidence, silent)
        if self.finding is None and self._doubted(standstill, evidence, patience):
            return False
        finding = describe(standstill, max(silent.values(), default=0.0), allowed)
        # Once named, a standstill keeps its name and rank as long as it lasts.
        if self.finding is None or finding.key == self.finding.key:
            self.finding = finding
        return True

    def _doubted(self, still: Standstill, evidence: Evidence, patience: float) -> bool:
        """Whether it may be work after all; then the ranks are asked again, now or later."""
        facts = evidence.facts
        if max(silences(evidence).values(), default=0.0) < patience:
            if self._certain(still):
                return False
            self._forget()
            self.not_before = facts.monotonic + _ASK_AGAIN_SECONDS * 2 ** min(self.doubts, 3)
            self.doubts += 1
            return True
        if self._unsure(still):
            self.asks = _ASKS - 1  # once more
            return True
        longest = max(still.silent.values(), default=0.0)
        program = self._program(still, facts)
        busy = self._busy(still, facts) or compute_alike(still, evidence)
        if program or (busy and (longest < _LONGEST_BUSY or self._works(still, facts))):
            if program or longest >= _LONGEST_BUSY:
                self.long_step = long_step(still, longest, program)
            self._forget()
            self.worked_at = facts.monotonic
            self.not_before = facts.monotonic + _AFTER_BUSY_SECONDS
            return True
        return False

    def _certain(self, still: Standstill) -> bool:
        """Whether no patience is needed: nothing healthy stands like this."""
        if still.stopped:
            return True
        moved = any(len(set(stacks)) > 1 for stacks in self.stacks.values())
        return still.deadlock and not moved and not still.busy

    def _ask_the_mute(self, facts: Facts, evidence: Evidence) -> None:
        """Ask those that were spared: a signal can wake a sleep in C, so it comes last."""
        self._signal(evidence, self.mute & facts.ranks.keys())
        self.mute = set()
        self._read(evidence)

    def _forget(self) -> None:
        for native in self.natives.values():
            native.end()
        self.requested_at, self.asks, self.finding = None, 0, None
        self.offsets, self.stacks, self.cpu, self.natives = {}, {}, {}, {}
        self.wakes, self.work, self.mute = {}, {}, set()

    def _waiting(self, facts: Facts) -> bool:
        return self.requested_at is not None and facts.monotonic - self.requested_at < _ASK_EVERY

    def _ask(self, evidence: Evidence, silent: Mapping[int, float]) -> None:
        """Read what was answered and ask again, a few times; the answers come within moments."""
        facts = evidence.facts
        if self._waiting(facts) or self.asks > _ASKS or not silent:
            return
        self._read(evidence)
        if self.asks == _ASKS:
            self.asks += 1
            return
        if self.asks == 0:
            self._begin(evidence)
        elif self.asks == 2:
            self.mute = self._unanswered(evidence)
        elif self.asks == _ASKS - 2:  # the first time they may have been on their way to one
            request_dump(evidence.paths)
        self.asks, self.requested_at = self.asks + 1, facts.monotonic
        # First the collectives: a rank that does not even write those has no thread that runs.
        if self.asks > 2:
            self._request_stacks(evidence)

    def _request_stacks(self, evidence: Evidence) -> None:
        """Of ranks that wrote their collectives by their own thread; of others by signal."""
        paths, ranks = evidence.paths, evidence.facts.ranks
        answering = [rank for rank in ranks if rank not in self.mute]
        awake = [rank for rank in answering if dumped(paths, rank, self.begun_time - 1.0)]
        self.offsets |= request_stacks(paths, awake)
        self._signal(evidence, set(answering) - set(awake))

    def _signal(self, evidence: Evidence, ranks: Iterable[int]) -> None:
        for rank in ranks:
            offset = ask(evidence.paths, rank, evidence.facts.ranks[rank].process)
            if offset is not None:
                self.offsets[rank] = offset

    def _begin(self, evidence: Evidence) -> None:
        facts = evidence.facts
        self.begun_at, self.begun_time = facts.monotonic, facts.time
        self.cpu = {rank: rank_facts.cpu_seconds or 0.0 for rank, rank_facts in facts.ranks.items()}
        self.wakes = {rank: wakes(rank_facts.process) for rank, rank_facts in facts.ranks.items()}
        self.work = {rank: work_of(rank_facts.process) for rank, rank_facts in facts.ranks.items()}
        request_dump(evidence.paths)

    def _unanswered(self, evidence: Evidence) -> set[int]:
        """Ranks that did not write their collectives while others did."""
        ranks = evidence.facts.ranks
        wrote = {
            rank
            for rank in ranks
            if last_collective(evidence.paths, rank, self.begun_time - 1.0) is not None
        }
        return set(ranks) - wrote if wrote else set()

    def _read(self, evidence: Evidence) -> None:
        for rank, offset in list(self.offsets.items()):
            stack = answer(evidence.paths, rank, offset)
            if stack is not None:
                self.stacks.setdefault(rank, []).append(stack)
                del self.offsets[rank]

    def _standstill(self, evidence: Evidence, silent: Mapping[int, float]) -> Standstill:
        facts, ranks = evidence.facts, evidence.facts.ranks
        collectives = {
            rank: last
            for rank in ranks
            if (last := last_collective(evidence.paths, rank, self.begun_time - 1.0)) is not None
        }
        latest = {rank: stacks[-1] for rank, stacks in self.stacks.items() if stacks}
        still = Standstill(
            step=min((rank.pulse.steps for rank in ranks.values() if rank.pulse), default=None),
            steps=evidence.steps,
            ranks=ranks,
            silent=dict(silent),
            stacks=latest,
            collectives=collectives,
            mute={
                rank
                for rank in self._unanswered(evidence)
                if ranks[rank].process_state not in {"T", "t"}
            },
            saved_step=saved_step(facts),
            busy={rank for rank in ranks if self._computes(rank, facts)},
        )
        for rank in still.suspects[:2]:
            if rank not in self.natives and ranks[rank].process_state != "T":
                self.natives[rank] = NativeStack(evidence.paths, rank, ranks[rank].process)
        still.natives.update(
            {rank: line for rank, stack in self.natives.items() if (line := stack.innermost())}
        )
        return still

    def _computes(self, rank: int, facts: Facts, share: float = _BUSY_SHARE) -> bool:
        """Whether the rank used that share of a core since it was first asked."""
        now, seconds = facts.ranks[rank].cpu_seconds, facts.monotonic - self.begun_at
        return now is not None and now - self.cpu.get(rank, now) > share * seconds > 0

    def _works(self, still: Standstill, facts: Facts) -> bool:
        """Whether a suspect does more than look again and again for something."""
        return any(
            self._computes(rank, facts, _WORK_SHARE) or self._goes_on(rank, facts)
            for rank in still.suspects or still.living
        )

    def _goes_on(self, rank: int, facts: Facts) -> bool:
        """Whether its files or memory show work; where it waits for data, its loader's workers."""
        now, before = work_of(facts.ranks[rank].process), self.work.get(rank, Work())
        if self._loads(rank):
            return now.children_go_on(before, facts.monotonic - self.begun_at)
        return now.goes_on(before)

    def _loads(self, rank: int) -> bool:
        stacks = self.stacks.get(rank, [])
        return bool(stacks) and all(stack.action == "data loading" for stack in stacks)

    def _program(self, still: Standstill, facts: Facts) -> tuple[int, int, str] | None:
        """Rank, pid and name of a program at work that a suspect started and waits for."""
        if still.stopped or still.interpreter_held:
            return None
        for rank in still.suspects or still.living:
            process, stack = facts.ranks[rank].process, still.stacks.get(rank)
            seen_in_stack = stack is not None and stack.waits_for_program
            child = awaited_program(process, seen_in_stack=seen_in_stack)
            if child is None:
                continue
            work = work_of(process)
            seconds = facts.monotonic - (self.program_worked_at or 0.0)
            if self.program_worked_at is None or work.children_go_on(self.program_work, seconds):
                self.program_worked_at, self.program_work = facts.monotonic, work
            if facts.monotonic - self.program_worked_at < _LONGEST_BUSY:
                return rank, *child
        return None

    def _unsure(self, still: Standstill) -> bool:
        """Whether a suspect computes with one and the same stack, and was not asked often yet."""
        return any(
            rank in still.busy and 0 < len(self.stacks.get(rank, [])) < _MORE_ASKS
            for rank in still.suspects or still.living
        )

    def _busy(self, still: Standstill, facts: Facts) -> bool:
        """Whether a suspect is at work: its stack changes, or its main thread wakes up often."""
        if still.stopped or still.interpreter_held:
            return False
        seconds = facts.monotonic - self.begun_at
        for rank in still.suspects or still.living:
            stacks = self.stacks.get(rank, [])
            if self._goes_on(rank, facts):
                return True
            if self._loads(rank):  # it looks again and again whether a worker has something
                continue
            woken = wakes(facts.ranks[rank].process) - self.wakes.get(rank, 0) - 4 * len(stacks)
            if len(set(stacks)) > 1 or any(stack.action == "compiling" for stack in stacks):
                return True
            if woken > _WAKES_PER_SECOND * seconds:
                return True
        return False


def compute_alike(still: Standstill, evidence: Evidence) -> bool:
    """Whether all ranks compute on the processor, and none stands where it needs its peers.

    On a GPU that is no answer: who waits for a collective spins in a synchronisation of its own.
    """
    if still.suspects or not still.stacks or evidence.run.device != "cpu":
        return False
    waiting = any(stack.waits_for_peers for stack in still.stacks.values())
    return not waiting and still.busy >= set(still.living)


def wakes(process: ProcessDoc | None) -> int:
    """How often the main thread has given up the processor of itself; 0 when unknown."""
    if process is None or process["boot_id"] != boot_id():
        return 0
    path = Path(f"/proc/{process['pid']}/task/{process['pid']}/status")
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(path.read_text().split("\nvoluntary_ctxt_switches:")[1].split(None, 1)[0])
    return 0


def silences(evidence: Evidence, *, starting: bool = False) -> dict[int, float]:
    """Seconds since each rank gave a sign, for those that live and should be training.

    `starting`: those that have not come to their first backward pass too.
    """
    phases = {*_QUIET_PHASES, "starting"} if starting else _QUIET_PHASES
    facts = evidence.facts
    living = {
        rank: rank_facts
        for rank, rank_facts in facts.ranks.items()
        if rank_facts.alive and not rank_facts.ended
    }
    with_pulse = {rank: facts.pulse for rank, facts in living.items() if facts.pulse is not None}
    if with_pulse:
        return {
            rank: pulse.age_seconds(facts.monotonic)
            for rank, pulse in with_pulse.items()
            if (pulse.phase in phases and not facts.saving)
            or living[rank].process_state in {"T", "t"}
        }
    if evidence.row_at is None or facts.saving:
        return {}
    return dict.fromkeys(living, max(0.0, facts.monotonic - evidence.row_at))


def saved_step(facts: Facts) -> int | None:
    """Of the newest checkpoint that the run can be resumed from."""
    steps = [checkpoint.step for checkpoint in facts.checkpoints if checkpoint.step is not None]
    return None if not steps or facts.why_not_resumable() else max(steps)
