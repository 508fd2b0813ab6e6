"""Steps that a script does again in the same attempt, from a checkpoint of its own."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest

from tests.launch.ranks import Ranks

pytest.importorskip("torch")
pytestmark = pytest.mark.slow
Begin = Callable[..., Ranks]
AGAIN = [*range(1, 11), *range(7, 15)]  # saved at 6, failed after 10, done at 14


def steps(ranks: Ranks, rank: int = 0) -> list[int]:
    return [line["step"] for line in ranks.lines(rank)]


def rewinds(ranks: Ranks, rank: int = 0) -> list[tuple[int, int]]:
    path = ranks.folder / "metrics" / f"rank-{rank}.rewinds.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [(line["step"], line["rewound_from"]) for line in map(json.loads, lines)]


@pytest.mark.parametrize(
    ("kind", "ranks"),
    [("adam", 2), ("same-objects", 1), ("momentum", 1), ("weights-alone", 2)],
)
def test_steps_done_again_keep_their_numbers(begin: Begin, kind: str, ranks: int) -> None:
    """On every rank, though rank 0 alone saves: the number is the one that the script prints."""
    run = begin("goes_back.py", kind, ranks=ranks)
    assert run.wait() == [0] * ranks, run.log()
    for rank in range(ranks):
        printed = [int(one) for one in re.findall(r"^step (\d+)", run.log(rank), re.MULTILINE)]
        assert steps(run, rank) == printed == AGAIN
        marks = [line["rewound_from"] for line in run.lines(rank) if "rewound_from" in line]
        assert marks == [10]
        assert rewinds(run, rank) == [(7, 10)]


@pytest.mark.parametrize(
    ("kind", "count"),
    [
        ("trials", 12),
        ("looks-back", 8),
        ("folds", 8),
        ("variants", 18),
        ("stateless-variants", 18),
    ],
)
def test_a_load_that_does_not_go_back_counts_on(begin: Begin, kind: str, count: int) -> None:
    run = begin("goes_back.py", kind)
    assert run.wait() == [0], run.log()
    assert steps(run) == list(range(1, count + 1))
    assert rewinds(run) == []


def test_a_second_process_of_the_rank_goes_on_where_its_state_was(begin: Begin) -> None:
    """As torchelastic starts it within one attempt (--max-restarts)."""
    first = begin("goes_back.py", "process", ranks=2)
    assert first.wait() == [1, 1], first.log()
    second = begin("goes_back.py", "process", ranks=2)
    assert second.wait() == [0, 0], second.log()
    for rank in range(2):
        assert steps(second, rank) == AGAIN
        assert rewinds(second, rank) == [(7, 10)]
