"""Runs that do not get on: no first step, a save without end, ranks that do not exit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from workbench.diagnose.evidence import Evidence, mean
from workbench.diagnose.facts import RankFacts
from workbench.diagnose.hang.flight_recorder import dumped, request_dump
from workbench.diagnose.hang.stacks import Stack, answer, ask
from workbench.store.findings import Finding
from workbench.units import format_seconds

EXIT_SECONDS = 60.0
_IDLE_SHARE = 0.03  # of a core, while it stands
_SAVE_SECONDS = 600.0
_START_SECONDS = 600.0
_IDLE_PERCENT = 5.0  # of one core, over the latest samples
_MOVING = 1e6  # bytes per second


@dataclass(slots=True)
class ExitWatch:
    """Some ranks' scripts have ended or left their process group, and processes remain."""

    first_end: float | None = None
    requested_at: float | None = None
    requested_time: float = 0.0
    offsets: dict[int, int] = field(default_factory=dict[int, int])
    cpu: dict[int, float] = field(default_factory=dict[int, float])
    stuck: frozenset[int] = frozenset()
    """Ranks that left their group and in which nothing runs: no work of theirs is to come."""

    def rule(self, evidence: Evidence) -> Iterator[Finding]:
        """Yield who keeps the run from ending, a minute after the first rank's end."""
        facts = evidence.facts
        ended = [rank for rank, rank_facts in facts.ranks.items() if rank_facts.ended]
        left = [rank for rank, rank_facts in facts.ranks.items() if has_left(rank_facts)]
        alive = [rank for rank, rank_facts in facts.ranks.items() if rank_facts.alive]
        self.stuck = frozenset()
        if not (ended or left) or not alive or facts.phase == "ended":
            self.first_end = self.requested_at = None
            return
        if self.first_end is None:
            self.first_end = facts.monotonic
            self.cpu = {rank: facts.ranks[rank].cpu_seconds or 0.0 for rank in alive}
        waited = facts.monotonic - self.first_end
        inside = [rank for rank in alive if rank not in ended]
        if waited < EXIT_SECONDS - 3 or self._goes_on(evidence, inside):
            return
        if self.requested_at is None:
            self._ask(evidence, alive)
        if waited >= EXIT_SECONDS:
            self.stuck = frozenset(r for r in left if r in inside and self._stands(evidence, r))
            suspects = sorted(self.stuck) or (inside or alive if ended else [])
            if suspects:
                yield self._finding(evidence, suspects[0], ended, waited)

    def _ask(self, evidence: Evidence, alive: list[int]) -> None:
        facts = evidence.facts
        self.requested_at, self.requested_time = facts.monotonic, facts.time
        request_dump(evidence.paths)
        offsets = {rank: ask(evidence.paths, rank, facts.ranks[rank].process) for rank in alive}
        self.offsets = {rank: at for rank, at in offsets.items() if at is not None}

    def _goes_on(self, evidence: Evidence, inside: list[int]) -> bool:
        """Whether a rank still trains: the others had less to do."""
        pulses = [evidence.facts.ranks[rank].pulse for rank in inside]
        now = evidence.facts.monotonic
        return any(pulse is not None and pulse.age_seconds(now) < EXIT_SECONDS for pulse in pulses)

    def _stands(self, evidence: Evidence, rank: int) -> bool:
        """Whether a rank computes nothing, and no thread of its Python answers."""
        now = evidence.facts.ranks[rank].cpu_seconds
        idle = now is not None and now - self.cpu.get(rank, now) < _IDLE_SHARE * EXIT_SECONDS
        has_hook = rank in self.offsets  # whose thread writes a dump where it may run
        return idle and has_hook and not dumped(evidence.paths, rank, self.requested_time - 1.0)

    def _finding(self, evidence: Evidence, rank: int, ended: list[int], waited: float) -> Finding:
        stack: Stack | None = None
        if rank in self.offsets:
            stack = answer(evidence.paths, rank, self.offsets[rank])
        where = f", in {stack.place}" if stack is not None else ""
        ago = f"{format_seconds(waited)} ago"
        seen = f"{len(ended)} of {len(evidence.facts.ranks)} ranks ended their script {ago}"
        stuck = "its script has ended, its process has not" if rank in ended else "it has not ended"
        cause = (
            f"Rank {rank} trained but does not exit: a thread, an exit handler, a child process "
            "or a collective that its peers have left keeps it alive."
        )
        if rank in self.stuck:
            seen = f"The first rank left its process group {ago}"
            stuck = "it has left the group too, and none of its threads runs"
            cause = (
                f"Rank {rank} trained but does not exit: torch waits there for a thread that waits "
                "for Python's interpreter lock (GIL), and neither ever continues."
            )
        elif rank not in ended and stack is not None and stack.waits_for_peers:
            cause = (
                f"Rank {rank} waits in {stack.place} for ranks that have ended: they had fewer "
                "batches than it."
            )
        return Finding(
            kind="exit-hang",
            rank=rank,
            step=evidence.steps,
            severity="error",
            confidence=0.95 if rank in self.stuck else 0.85,
            evidence=f"{seen}; rank {rank}: {stuck}{where}.",
            cause=cause,
            next="Stop the run now: its steps are done. Call destroy_process_group() at the end "
            "of the script on all ranks; where it is called, drop the DDP model before it (del "
            "model): torch can wait for its own threads when a function's last model goes later.",
        )


def has_left(facts: RankFacts) -> bool:
    """Whether a rank's training is over: its script has ended, or has left its process group."""
    return facts.ended or (facts.pulse is not None and facts.pulse.phase == "ended")


def slow_start(evidence: Evidence) -> Iterator[Finding]:
    """No step for ten minutes, and hardly any work being done."""
    facts = evidence.facts
    if evidence.steps_seen or facts.phase in {"ended", "stopping"}:
        return
    if facts.elapsed_seconds < _START_SECONDS:
        return
    used = _waiting_percent(evidence)
    if used is None:
        return
    missing = [rank for rank in range(evidence.processes) if rank not in facts.ranks]
    missing_text = f"; ranks {missing} have not started" if missing else ""
    yield Finding(
        kind="slow-start",
        rank=missing[0] if missing else None,
        confidence=0.6,
        evidence=f"No optimizer step in {format_seconds(facts.elapsed_seconds)}, and the run uses "
        f"{used:.1f} % of one core{missing_text}.",
        cause="The ranks wait for each other, a download or a lock before training.",
        next="Look at the ranks' logs; on several machines at the rendezvous address and port.",
    )


def _waiting_percent(evidence: Evidence) -> float | None:
    """Of one core, on the busiest machine; None where any works, or downloads, or none tells."""
    moved = [sample.get("net_bytes_per_second") or 0.0 for sample in evidence.samples]
    used: list[float] = []
    for _, readings in evidence.fresh_hosts():
        moved += [reading.net_per_second or 0.0 for reading in readings]
        busy = [
            reading.run_cpu_percent
            for reading in list(readings)[-60:]
            if reading.run_cpu_percent is not None
        ]
        if len(busy) >= 10:
            used.append(mean(busy))
    if not used or max(moved, default=0.0) > _MOVING or max(used) > _IDLE_PERCENT:
        return None
    return max(used)


def slow_save(evidence: Evidence) -> Iterator[Finding]:
    """A checkpoint that has been in the making for ten minutes."""
    facts = evidence.facts
    ages = {
        rank: rank_facts.pulse.age_seconds(facts.monotonic)
        for rank, rank_facts in facts.ranks.items()
        if rank_facts.alive and rank_facts.pulse is not None and rank_facts.pulse.phase == "saving"
    }
    if not ages or max(ages.values()) < _SAVE_SECONDS:
        return
    rank = max(ages, key=lambda rank: ages[rank])
    yield Finding(
        kind="slow-save",
        rank=rank,
        step=evidence.steps,
        confidence=0.6,
        evidence=f"Rank {rank} has been saving for {format_seconds(ages[rank])}.",
        cause="The disk is slow or does not answer, or the ranks wait for each other while saving.",
        next="Check the disk's write rate; save sharded or asynchronously, or less often.",
    )


RULES = (slow_start, slow_save)
