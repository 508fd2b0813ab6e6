"""Real ranks in different collectives, looked at as the supervisor does."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.diagnose.sample import run_document
from tests.launch.ranks import Ranks
from workbench.diagnose.diagnoser import Diagnoser
from workbench.diagnose.facts import Facts, rank_facts
from workbench.observe.events import MetricStream
from workbench.store.files import read_json
from workbench.store.findings import Finding
from workbench.store.layout import RunPaths
from workbench.store.run_record import RunRecord

pytestmark = pytest.mark.slow
pytest.importorskip("torch")


def watched(ranks: Ranks, count: int, limit: float) -> tuple[Finding | None, float]:
    """The first standstill that is told, and how long the ranks had been silent by then."""
    paths = RunPaths(ranks.folder)
    diagnoser = Diagnoser(paths, RunRecord.of(run_document(processes=count)), keep=False)
    stream, began = MetricStream(paths, count), time.monotonic()
    while time.monotonic() - began < limit:
        starts = {rank: read_json(paths.rank_start(rank)) for rank in range(count)}
        known = {
            rank: rank_facts(paths, rank, start["process"])
            for rank, start in starts.items()
            if start is not None
        }
        now = time.monotonic()
        diagnoser.rows(stream.read())
        facts = Facts(
            phase="running", elapsed_seconds=now - began, started_at=time.time(), ranks=known
        )
        for one in diagnoser.look(facts):
            if one.kind in {"deadlock", "hang"}:
                pulses = [one.pulse for one in known.values() if one.pulse is not None]
                return one, min(pulse.age_seconds(now) for pulse in pulses)
        time.sleep(0.3)
    return None, limit


@pytest.mark.parametrize("at", [0, pytest.param(20, marks=pytest.mark.full)])
def test_different_collectives_are_named_soon_and_with_their_calls(tmp_path: Path, at: int) -> None:
    ranks = Ranks(tmp_path, "mismatch.py", "--at", str(at), ranks=2)
    try:
        found, silent = watched(ranks, 2, 150)
    finally:
        ranks.end()
    assert found is not None
    assert found.kind == "deadlock"
    assert "rank 1 waits in barrier at mismatch.py:23 (barrier, call" in found.cause
    assert "rank 0 waits in broadcast at mismatch.py:19 (broadcast, call" in found.cause
    assert found.step == at + 1
    assert silent < 120  # promised: 20 s before the first step on an idle machine, not 5 minutes
