"""A run is ended for a standstill only when nothing healthy looks like it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from workbench.diagnose.facts import RankFacts
from workbench.diagnose.hang.work import Work
from workbench.launching.supervise import restart
from workbench.launching.supervise.monitor import RunMonitor
from workbench.launching.supervise.restart import BUSY_SECONDS, IDLE_SECONDS, HangTimeout
from workbench.store.findings import Finding, Severity


def standing(kind: str, rank: int | None, severity: Severity = "error") -> Finding:
    words = {"evidence": "e", "cause": "c", "next": "n"}
    return Finding(kind=kind, rank=rank, severity=severity, confidence=0.9, **words)


def ended_after(hang: Finding, share: float, state: str = "S") -> float | None:
    """Seconds until the run is ended when rank 0 uses `share` of a core; None: not in an hour."""
    patience = HangTimeout()
    for now in range(0, 3600, 5):
        works = RankFacts(alive=True, process_state=state, cpu_seconds=7.0 + share * now)
        waits = RankFacts(alive=True, process_state="S", cpu_seconds=7.0)
        if patience.expired(hang, {0: works, 1: waits}, 1000.0 + now):
            return now
    return None


@pytest.mark.parametrize("kind", ["stopped-rank", "exit-hang"])
def test_what_is_certain_is_ended_at_once(kind):
    assert ended_after(standing(kind, 0), 0.0) == 0


@pytest.mark.parametrize("kind", ["hang", "gil-held"])
@pytest.mark.parametrize(
    ("rank", "share", "state", "seconds"),
    [
        (0, 0.0, "S", IDLE_SECONDS),
        (0, 1.0, "R", BUSY_SECONDS),  # an evaluation on one rank, or an endless loop
        (0, 0.0, "D", BUSY_SECONDS),  # a file system that may answer again
        (1, 1.0, "R", IDLE_SECONDS),  # rank 0 spins while it waits for rank 1
        (None, 1.0, "R", BUSY_SECONDS),  # all stand alike, and someone computes
        (None, 0.0, "S", IDLE_SECONDS),
    ],
)
def test_who_works_is_given_time(kind, rank, share, state, seconds):
    assert ended_after(standing(kind, rank), share, state) == seconds


@pytest.mark.parametrize(("rank", "share"), [(0, 0.0), (0, 1.0), (1, 1.0), (None, 0.0)])
def test_a_rank_that_may_only_be_late_is_given_time_though_it_does_nothing(rank, share):
    assert ended_after(standing("hang", rank, "warning"), share) == BUSY_SECONDS


def test_a_deadlock_is_none_while_one_of_the_ranks_computes():
    assert ended_after(standing("deadlock", 1), 1.0, "R") == BUSY_SECONDS
    assert ended_after(standing("deadlock", 1), 0.0) == IDLE_SECONDS


def test_a_standstill_that_ended_counts_from_the_beginning_when_it_comes_again():
    patience, hang, ranks = HangTimeout(), standing("hang", 0), {0: RankFacts(cpu_seconds=1.0)}
    assert not patience.expired(hang, ranks, 0.0)
    assert not patience.expired(hang, ranks, IDLE_SECONDS - 1)
    patience.reset()
    assert not patience.expired(hang, ranks, IDLE_SECONDS + 1)
    assert patience.expired(hang, ranks, 2 * IDLE_SECONDS + 1)


def test_who_waits_for_a_program_at_work_is_given_time(monkeypatch: pytest.MonkeyPatch):
    uploaded = iter(range(10_000_000))
    monkeypatch.setattr(
        restart, "work_of", lambda _: Work(children_moved_bytes=next(uploaded) << 20)
    )
    assert ended_after(standing("hang", 0), 0.0) == BUSY_SECONDS


def test_a_stop_waits_for_the_step_of_a_rank_that_may_only_be_late():
    """The ranks could still save there."""
    told = RunMonitor.standstill.fget
    assert told is not None
    hangs = {severity: standing("hang", 0, severity) for severity in ("warning", "error")}
    assert told(SimpleNamespace(findings=[hangs["warning"]])) is None
    assert told(SimpleNamespace(findings=list(hangs.values()))) is hangs["error"]
    assert told(SimpleNamespace(findings=[standing("exit-hang", 0, "warning")])) is not None
