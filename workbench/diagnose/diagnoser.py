"""`Diagnoser`: looks at a run once a second and keeps what it found.

A finding is raised when its rule gives it and cleared when the rule has not given it for a while,
so that one that comes and goes with the noise stands instead of flickering. One whose cause turns
out to be another is replaced in the same look.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from workbench.diagnose import (
    arrival_order,
    contention,
    economy,
    hardware,
    host,
    memory_growth,
    nodes,
    nonfinite,
    numbers,
    progress,
    script,
    slow_exchange,
    speed,
    weights,
)
from workbench.diagnose.arrival_watch import ArrivalWatch
from workbench.diagnose.evidence import Evidence, single_rank_seconds
from workbench.diagnose.facts import Facts
from workbench.diagnose.hang.detection import HangWatch
from workbench.diagnose.numbers import UnsynchronizedRanks
from workbench.diagnose.out_of_memory import OomKills
from workbench.diagnose.progress import ExitWatch
from workbench.diagnose.replacing import best_explained, better_key
from workbench.observe.events import StepRow
from workbench.observe.rank_count import rank_count
from workbench.observe.rewinds import read_rewinds
from workbench.store.files import write_json_atomic
from workbench.store.findings import (
    EXIT_HANG,
    HANGS,
    SEVERITIES,
    Finding,
    read_findings,
    worst_first,
)
from workbench.store.layout import RunPaths
from workbench.store.processes import boot_id
from workbench.store.rank_records import RankStart
from workbench.store.record import read_start
from workbench.store.run_record import RunRecord
from workbench.store.schema import SystemLine

Rule = Callable[[Evidence], Iterator[Finding]]
_BY_ORDER: tuple[Rule, ...] = (*arrival_order.RULES, *slow_exchange.RULES, *contention.RULES)
RULES: tuple[Rule, ...] = (
    *nodes.RULES,
    *_BY_ORDER,
    *numbers.RULES,
    *progress.RULES,
    *script.RULES,
    *economy.RULES,
)
# Over many steps or a minute and more of samples: they need not be looked at every second.
SLOW_RULES: tuple[Rule, ...] = (
    *numbers.SLOW_RULES,
    *weights.SLOW_RULES,
    *speed.RULES,
    *host.RULES,
    *memory_growth.SLOW_RULES,
    *hardware.RULES,
    speed.low_utilisation,
    economy.unused_gpu,
)
_SLOW_SECONDS = 3.0

_AT_ONCE = (
    *_BY_ORDER,
    *numbers.RULES,
    *numbers.SLOW_RULES,
    *weights.SLOW_RULES,
    *script.RULES,
)  # need no time to be sure

_CLEAR_SECONDS = 20.0
# What the noise of a shared machine can look like for a moment has to last before it is raised.
_HOLD_SECONDS = {
    "straggler": 10.0,
    "communication-bound": 10.0,
    "slow-down": 10.0,
    "low-utilisation": 10.0,
    "scaling": 10.0,
    "input-bound": 2.0,
    "host-contention": 10.0,
}
_BY_ARRIVAL = frozenset({"straggler", "communication-bound", "input-bound", "imbalanced-work"})
_STANDING = HANGS | {EXIT_HANG, "long-step"}
_CLEAR_SOONER = dict.fromkeys(_STANDING, 2.0)  # over as soon as the ranks continue
_REFRESH_SECONDS = 5.0  # a standing finding's numbers are rewritten no more often
_STARTS_SECONDS = 5.0
_COMPARED_AFTER = 30  # steps
_ENTRIES_MAX = 64


@dataclass(slots=True)
class _Entry:
    """A finding with its times on the clock that never jumps."""

    finding: Finding
    raised_at: float
    refreshed: float


class Diagnoser:
    """The findings of one run. Feed it rows and samples, then `look`."""

    def __init__(
        self,
        paths: RunPaths,
        run: RunRecord,
        *,
        keep: bool = True,
        gpu_errors: bool | None = None,
    ) -> None:
        """`keep`: write what is found, by this host's clock; else all clocks are the facts' own.

        `gpu_errors`: ask the driver for Xids and memory errors; None = where `keep`, for a recorded
        run's errors are not those of the cards of this host.
        """
        self._paths, self._keep = paths, keep
        created = run.created_at or time.time()
        first = Facts(phase="starting", elapsed_seconds=0.0, started_at=created)
        self.evidence = Evidence(paths, run, first)
        self.problems: dict[str, str] = {}
        """Rules that failed, and how: a defect of ours, never the run's."""
        now = time.monotonic()
        self._by_key = {
            finding.key: _Entry(finding, now, now) for finding in read_findings(paths) or [] if keep
        }
        self._pending: dict[tuple[str, int | None], float] = {}
        self._starts_due = self._slow_due = 0.0
        self._slow: list[Finding] = []
        self._compared = False
        self._arrivals = ArrivalWatch(paths, live=keep)
        self._kills = OomKills(paths) if keep else None
        asks = keep if gpu_errors is None else gpu_errors
        self._gpu_errors = (hardware.GpuErrors().rule,) if asks else ()
        self.exits = ExitWatch()
        """Who has trained and does not exit."""
        self.hangs = HangWatch()
        """Who stands still, and when ranks that seemed to were last seen at work."""
        self._rules: tuple[Rule, ...] = (
            self.hangs.rule,
            self.exits.rule,
            UnsynchronizedRanks().rule,
            *self._gpu_errors,
            *RULES,
        )
        # Nothing is a finding too: the file tells that the rules have looked.
        findings = [entry.finding for entry in self._by_key.values()]
        self._written: list[Finding] | None = findings if paths.findings.exists() else None

    def rows(self, rows: Sequence[StepRow]) -> None:
        """Take in finished steps, in order."""
        self.evidence.take(rows)

    def sample(self, line: SystemLine, node: int = 0) -> None:
        """Take in a hardware sample of a machine; the same one again changes nothing."""
        at = time.monotonic() if self._keep else line["time"]
        self.evidence.sample(line, at, node)

    def look(self, facts: Facts) -> list[Finding]:
        """All findings of the run so far, worst first. Called once a second, takes milliseconds."""
        if facts.attempt != self.evidence.facts.attempt:
            self.evidence.new_attempt()
            self._slow_due = 0.0
        self.evidence.facts = facts
        self.evidence.standing = {
            key for key, entry in self._by_key.items() if entry.finding.cleared_at is None
        }
        if facts.monotonic >= self._starts_due:
            self._starts_due = facts.monotonic + _STARTS_SECONDS
            self._read_starts()
        self.evidence.look_at_ranks()
        self._follow_arrivals()
        self._look_for_a_loader()
        self._follow_kills(facts)
        if facts.monotonic >= self._slow_due:
            self._slow_due = facts.monotonic + _SLOW_SECONDS
            self._slow = [finding for rule in SLOW_RULES for finding in self._ask(rule)]
        findings = [finding for rule in self._rules for finding in self._ask(rule)] + self._slow
        self._merge(findings, facts)
        return self._write()

    def _look_for_a_loader(self) -> None:
        """Before a rank is called slow between the steps: does a loader feed it by now?

        It notes its loader in its first step, which may be after the latest reading of the starts.
        """
        late = None if self.evidence.has_loader else arrival_order.late_rank(self.evidence)
        start = None
        if late is not None and late.phase == "input":
            start = read_start(self._paths, late.rank)
        if late is not None and start is not None:
            self.evidence.starts = {**self.evidence.starts, late.rank: start}

    def _read_starts(self) -> None:
        """Read what the ranks report themselves, and what no step tells."""
        self.evidence.starts = read_starts(self._paths, self.evidence.run)
        self.evidence.group_waits = read_group_waits(self._paths, self.evidence.starts)
        self.evidence.rewinds = read_rewinds(self._paths)
        if not self._compared and self.evidence.steps_seen >= _COMPARED_AFTER:
            self._compared = True
            self.evidence.single_rank_seconds = single_rank_seconds(self._paths, self.evidence.run)

    def begin_attempt(self) -> list[Finding]:
        """A new attempt begins: what stood then was of the one before."""
        now = round(time.time(), 3)
        for entry in self._by_key.values():
            if entry.finding.cleared_at is None:
                entry.finding = replace(entry.finding, cleared_at=now)
        return self._write()

    def end(
        self, outcome: str, finding: Finding | None, world_size: int | None = None
    ) -> list[Finding]:
        """The run is over: what stood stays standing; `finding` is the verdict's own."""
        self._last_look(world_size)
        now = time.monotonic() if self._keep else self.evidence.facts.monotonic
        at = time.time() if self._keep else self.evidence.facts.time
        self.evidence.facts = replace(self.evidence.facts, phase="ended", time=at, monotonic=now)
        for entry in self._by_key.values():  # what ended well did not hang in the end
            if outcome == "succeeded" and entry.finding.kind in _CLEAR_SOONER:
                cleared = entry.finding.cleared_at or round(at, 3)
                entry.finding = replace(entry.finding, cleared_at=cleared)
        self.evidence.outcome = outcome
        for raised in (*self._ask(script.no_steps), *self._ask(script.caught_error)):
            self._merge_one(raised, self.evidence.facts)
        for raised in self._ask(nonfinite.nan_loss):  # what to do is another thing now
            entry = self._by_key.get(raised.key)
            if entry is not None and entry.finding.cleared_at is None:
                entry.finding = replace(entry.finding, next=raised.next)
        if finding is not None:
            finding = replace(finding, ended_run=outcome != "succeeded")
            self._merge_one(finding, self.evidence.facts)
            entry = self._by_key.get(finding.key)
            if entry is not None and outcome != "succeeded":
                entry.finding = replace(entry.finding, ended_run=True, cleared_at=None)
        return self._write()

    def _last_look(self, world_size: int | None) -> None:
        """What needs no time to be sure is told of short runs too; what has gone is cleared."""
        facts = self.evidence.facts
        facts = replace(facts, world_size=world_size or facts.world_size)
        self.evidence.facts = facts
        self.evidence.starts = read_starts(self._paths, self.evidence.run)
        self.evidence.rewinds = read_rewinds(self._paths)
        self._follow_arrivals(final=True)
        at_once = (*_AT_ONCE, *self._gpu_errors)  # the Xid that has ended the run
        raised = [finding for rule in at_once for finding in self._ask(rule)]
        for finding in best_explained(raised, self.evidence.standing):
            if not self._hold_seconds(finding):
                self._merge_one(finding, facts)
        self._withdraw(facts)
        noisy = [
            finding
            for rule in (*_BY_ORDER, *speed.RULES, speed.low_utilisation)
            for finding in self._ask(rule)
        ]
        raised_keys = {finding.key for finding in noisy}
        for key, entry in self._by_key.items():
            past = entry.finding.kind in _HOLD_SECONDS and key not in raised_keys
            if past and entry.finding.cleared_at is None:
                entry.finding = replace(entry.finding, cleared_at=round(facts.time, 3))

    def _follow_arrivals(self, *, final: bool = False) -> None:
        had_arrivals = bool(self.evidence.arrivals)
        try:
            self._arrivals.look(self.evidence, final=final)
        except Exception as error:  # noqa: BLE001  (nor must an unreadable file)
            self.problems.setdefault("arrivals", repr(error))
        if self.evidence.arrivals and not had_arrivals:
            self._slow_due = 0.0  # rules that know less leave the word to those of the order

    def _hold_seconds(self, finding: Finding) -> float:
        """Where the order of arrival is known, the rules count steps themselves."""
        if self.evidence.arrivals and finding.kind in _BY_ARRIVAL:
            return 0.0
        if finding.kind == "host-contention" and finding.phase == arrival_order.PAUSED:
            return 0.0  # a quota does not come and go
        return _HOLD_SECONDS.get(finding.kind, 0.0)

    def _follow_kills(self, facts: Facts) -> None:
        if self._kills is not None:
            living = [rank.process for rank in facts.ranks.values() if rank.alive and rank.process]
            here = [process["pid"] for process in living if process["boot_id"] == boot_id()]
            self._kills.watch(here, facts.monotonic)
            self._kills.look()

    def _ask(self, rule: Rule) -> list[Finding]:
        try:
            return list(rule(self.evidence))
        except Exception as error:  # noqa: BLE001  (one defective rule must not silence the others)
            self.problems.setdefault(getattr(rule, "__name__", "rule"), repr(error))
            return []

    def _merge(self, raised: Sequence[Finding], facts: Facts) -> None:
        now = facts.monotonic
        raised = best_explained(raised, self.evidence.standing)
        self._pending = {finding.key: self._pending.get(finding.key, now) for finding in raised}
        for finding in raised:
            hold = self._hold_seconds(finding)
            if finding.key in self.evidence.standing or now - self._pending[finding.key] >= hold:
                self._merge_one(finding, facts)
        self._withdraw(facts)
        for entry in self._by_key.values():
            patience = _CLEAR_SOONER.get(entry.finding.kind, _CLEAR_SECONDS)
            if entry.finding.cleared_at is None and facts.monotonic - entry.raised_at > patience:
                entry.finding = replace(entry.finding, cleared_at=round(facts.time, 3))

    def _withdraw(self, facts: Facts) -> None:
        """What has a better explanation by now has gone, at once, and says what replaces it."""
        standing = {key for key, entry in self._by_key.items() if entry.finding.cleared_at is None}
        for key in standing:
            better, entry = better_key(key, standing), self._by_key[key]
            if better is not None:
                entry.finding = replace(
                    entry.finding,
                    cleared_at=round(facts.time, 3),
                    replaced_by=self._by_key[better].finding.id,
                )

    def _merge_one(self, finding: Finding, facts: Facts) -> None:
        now = facts.monotonic
        entry = self._by_key.get(finding.key)
        if entry is None:
            seen = replace(finding, seen_at=finding.seen_at or round(facts.time, 3))
            self._by_key[finding.key] = _Entry(seen, now, now)
            if len(self._by_key) > _ENTRIES_MAX:
                del self._by_key[_expendable([item.finding for item in self._by_key.values()]).key]
            return
        old = entry.finding
        entry.raised_at, better = now, finding.confidence > old.confidence + 0.1
        if old.cleared_at is not None or better or now - entry.refreshed >= _REFRESH_SECONDS:
            began, other = (old, finding) if old.cleared_at is None else (finding, old)
            seen_at = began.seen_at or round(facts.time, 3)
            entry.finding = replace(finding, seen_at=seen_at, step=began.step or other.step)
            entry.refreshed = now

    def _write(self) -> list[Finding]:
        findings = worst_first([entry.finding for entry in self._by_key.values()])
        if self._keep and findings != self._written:
            document = {"schema": 1, "findings": [finding.document() for finding in findings]}
            with contextlib.suppress(OSError, ValueError):  # a full disk: again at the next look
                write_json_atomic(self._paths.findings, document)
                self._written = findings
        return findings


def _expendable(findings: Collection[Finding]) -> Finding:
    """Which of too many to do without: one that has gone, else the least severe.

    Of equals one of the commonest kind, so that what all ranks have does not displace what is new.
    """
    count = Counter(finding.kind for finding in findings)

    def rank(finding: Finding) -> tuple[bool, bool, int, int, float]:
        cleared, seen = finding.cleared_at is not None, finding.seen_at or 0.0
        severity = SEVERITIES.index(finding.severity)
        latest = -seen if cleared else seen  # what stands does not change with each look
        return not finding.ended_run, cleared, severity, count[finding.kind], latest

    return max(findings, key=rank)


def read_starts(paths: RunPaths, run: RunRecord) -> dict[int, RankStart]:
    """The start records of the ranks that have written one."""
    ranks = range(rank_count(paths, run.processes))
    starts = {rank: read_start(paths, rank) for rank in ranks}
    return {rank: start for rank, start in starts.items() if start is not None}


def read_group_waits(paths: RunPaths, starts: Mapping[int, RankStart]) -> dict[int, list[float]]:
    """See `Evidence.group_waits`."""
    ranks = {start.process["pid"]: rank for rank, start in starts.items() if start.process}
    waits: dict[int, list[float]] = {}
    for note in paths.waiting:
        with contextlib.suppress(OSError, ValueError):
            rank = ranks.get(int(note.name.split("-")[1]))
            if rank is not None:
                waits.setdefault(rank, []).append(note.stat().st_mtime)
    return waits
