"""Ranks that have trained and do not exit."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.diagnose.sample import Replay, kinds, row
from workbench.diagnose import progress
from workbench.diagnose.facts import RankFacts
from workbench.launching.supervise.restart import RestartController
from workbench.observe.pulse import Pulse


def rank(*, phase: str = "ended", alive: bool = True, ended: bool = False, cpu: float = 5.0):
    pulse = Pulse(beats=9, steps=40, phase=phase, time=1000.0, monotonic=1000.0)
    return RankFacts(alive=alive, ended=ended, pulse=pulse, cpu_seconds=cpu, process_state="S")


@pytest.fixture
def replay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Replay:
    monkeypatch.setattr(progress, "ask", lambda *_: 0)
    made = Replay(tmp_path)
    made.rows([row(step, 1.0) for step in range(1, 41)])
    return made


def found(
    replay: Replay, first: RankFacts, second: RankFacts, seconds: int = 62, busy: float = 0.0
):
    told = []
    for now in range(seconds):
        used = second.cpu_seconds + busy * now
        later = RankFacts(**{**_fields(second), "cpu_seconds": used})
        replay.facts = {"ranks": {0: first, 1: later}}
        told = replay.look(1004.0 + now)
    return [one for one in told if one.kind == "exit-hang" and one.cleared_at is None]


def _fields(facts: RankFacts) -> dict:
    return {name: getattr(facts, name) for name in facts.__slots__}


def test_a_rank_that_left_its_group_and_in_which_nothing_runs(replay: Replay) -> None:
    """Of ranks that a script starts itself rank 0 leaves no record of its end."""
    (finding,) = found(replay, rank(alive=False), rank())
    assert (finding.rank, finding.confidence) == (1, 0.95)
    assert "left the group" in finding.evidence
    assert "lock (GIL)" in finding.cause
    state = SimpleNamespace(paths=replay.paths, world_size_asked=1)
    monitor = SimpleNamespace(ranks=replay.facts["ranks"], diagnoser=replay.diagnoser)
    assert RestartController._all_trained(SimpleNamespace(_state=state), monitor)  # so it is ended


@pytest.mark.parametrize("why", ["answers", "computes", "trains"])
def test_one_that_works_after_its_group_is_left_alone(
    replay: Replay, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    monkeypatch.setattr(progress, "dumped", lambda *_: why == "answers")
    second = rank(phase="saving" if why == "trains" else "ended")
    assert not found(replay, rank(alive=False), second, busy=0.5 if why == "computes" else 0.0)
    assert "hang" not in kinds(replay.look(1070.0))


def test_one_whose_peers_have_ended_is_told_but_not_ended(
    replay: Replay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "dumped", lambda *_: True)
    (finding,) = found(replay, rank(alive=False, ended=True), rank())
    assert finding.rank == 1
    assert replay.diagnoser.exits.stuck == frozenset()
