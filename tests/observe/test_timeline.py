"""Rank timeline, at any number of ranks."""

from __future__ import annotations

import json
from typing import Any

import pytest

from workbench.observe.events import StepRow
from workbench.observe.timeline import Timeline


def document(ranks: int, late: dict[int, float], once: dict[int, float] | None = None) -> Any:
    """Forty steps in which `late` ranks are late, and in the last one `once` too."""
    timeline = Timeline(ranks)
    for step in range(1, 41):
        more = (once or {}) if step == 40 else {}
        entered = {r: 10.0 * step + late.get(r, r * 1e-6) + more.get(r, 0) for r in range(ranks)}
        timeline.append(StepRow(step, 10.0 * step + 1, backward_at=entered, ended_at=dict(entered)))
    return timeline.document()


@pytest.mark.parametrize("ranks", [2, 16, 17, 64, 1024])
@pytest.mark.parametrize("straggler", ["first", "middle", "last"])
def test_the_straggler_is_named_whichever_it_is(ranks: int, straggler: str) -> None:
    rank = {"first": 0, "middle": ranks // 2, "last": ranks - 1}[straggler]
    found = document(ranks, {rank: 0.5})
    assert found["latest"]["rank"] == rank
    assert found["latest"]["seconds"] == pytest.approx(0.5, abs=0.01)
    assert {one["rank"] for one in found["last"]} == {rank}
    rows = [one["rank"] for one in found["ranks"]]
    assert rank in rows
    assert rows == sorted(rows)
    assert (len(rows), found["ranks_hidden"]) == (min(ranks, 16), max(0, ranks - 16))
    assert len(json.dumps(found)) < 16_000


def test_a_rank_that_is_late_once_is_shown_beside_those_that_always_are() -> None:
    late = {rank: 0.1 + rank / 1000 for rank in range(20, 40)}
    found = document(64, late, {50: 3.0})
    rows = {one["rank"]: one for one in found["ranks"]}
    assert 50 in rows
    assert found["last"][-1] == {"rank": 50, "entered": pytest.approx(3.0, abs=0.01)}
    assert found["latest"]["rank"] == 39
    assert min(min(one["entered"]) for one in rows.values()) < 0.001  # what they are late against


def test_a_rank_that_never_told_has_an_empty_row() -> None:
    timeline = Timeline(3)
    assert timeline.document()["ranks"] == []
    timeline.append(StepRow(1, 1.0, backward_at={0: 0.5, 2: 0.6}))
    assert [one["entered"] for one in timeline.document()["ranks"]] == [[0.0], [None], [0.1]]
