"""What the ranks' weights tell: recorded runs of two real ranks, healthy and not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.diagnose.sample import Replay, row

RUNS: dict[str, dict[str, list[dict[str, Any]]]] = json.loads(
    (Path(__file__).parent / "data" / "weights.json").read_text()
)
EXPECTED = {
    "always_no_sync": ["weights-drift"],
    "module_called": ["weights-drift"],
    "stale_optimizer": ["weights-unchanged"],
}


def told(folder: Path, files: dict[str, list[dict[str, Any]]], steps: int = 140) -> list[str]:
    """Kinds of what the rules say of recorded looks, after `steps` steps."""
    replay = Replay(folder, processes=2)
    for name, lines in files.items():
        path = replay.diagnoser.evidence.paths.metrics / name
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    rows = [row(n, [2.0 + n % 3, 2.1 + n % 4]) for n in range(1, steps + 1)]
    return sorted(one.kind for one in replay.rows(rows) if one.kind in KINDS)


KINDS = {"weights-drift", "weights-unchanged", "no-gradient"}


@pytest.mark.parametrize("name", RUNS)
def test_recorded_weights_are_judged_rightly(tmp_path: Path, name: str) -> None:
    assert told(tmp_path, RUNS[name]) == EXPECTED.get(name, [])


def test_healthy_runs_of_all_layouts_are_among_them() -> None:
    healthy = set(RUNS) - set(EXPECTED)
    assert healthy == {"ddp", "fsdp", "tp", "pp", "zero2", "zero3"}
    looked = {name for name in healthy if [len(one) for one in RUNS[name].values()] == [5, 5]}
    assert healthy - looked == {"zero2", "zero3"}  # whose weights are in DeepSpeed's own keeping


@pytest.mark.parametrize(("steps", "expected"), [(15, []), (48, ["weights-drift"])])
def test_a_drift_is_told_after_two_looks_and_not_before(
    tmp_path: Path, steps: int, expected: list[str]
) -> None:
    assert told(tmp_path, RUNS["always_no_sync"], steps) == expected


def changed(name: str, rank: int, **values: Any) -> dict[str, list[dict[str, Any]]]:
    """A recorded run, with other figures in one rank's looks."""
    file = f"rank-{rank}.weights.jsonl"
    return {**RUNS[name], file: [{**line, **values} for line in RUNS[name][file]]}


def test_learning_rates_that_differ_are_the_cause(tmp_path: Path) -> None:
    replay = Replay(tmp_path, processes=2)
    for name, lines in changed("always_no_sync", 1, lr=0.02).items():
        path = replay.diagnoser.evidence.paths.metrics / name
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (found,) = replay.rows([row(n, [2.0 + n % 3, 2.1 + n % 4]) for n in range(1, 141)])
    assert found.kind == "weights-drift"
    assert "0.02 on rank 1" in found.cause
    assert "broadcast it" in found.next


def test_weights_that_are_averaged_now_and_then_may_differ(tmp_path: Path) -> None:
    averaged = {
        file: [{**line, "copies": False} for line in lines]
        for file, lines in RUNS["always_no_sync"].items()
    }
    assert told(tmp_path, averaged) == []


def test_a_rank_without_a_gradient_is_named(tmp_path: Path) -> None:
    run = RUNS["ddp"]
    lines = [
        {**line, "values": [[*one[:3], None] for one in line["values"]]}
        for line in run["rank-1.weights.jsonl"]
    ]
    assert told(tmp_path, {**run, "rank-1.weights.jsonl": lines}) == ["no-gradient"]


@pytest.mark.parametrize(("lr", "half", "expected"), [(0.0, False, []), (0.1, True, [])])
def test_weights_may_stand_still_at_a_rate_of_zero_and_in_the_warm_up_of_half_precision(
    tmp_path: Path, lr: float, *, half: bool, expected: list[str]
) -> None:
    assert told(tmp_path, changed("stale_optimizer", 0, lr=lr, half=half)) == expected


def test_weights_that_are_nan_are_not_called_unchanged(tmp_path: Path) -> None:
    """They were updated until the training diverged, and have gradients: all of them NaN."""
    nan = [[None] * 4] * len(RUNS["ddp"]["rank-0.weights.jsonl"][0]["values"])
    diverged = {
        file: [{**line, "values": nan} for line in lines] for file, lines in RUNS["ddp"].items()
    }
    assert told(tmp_path, diverged) == []


def test_broken_lines_are_left_out(tmp_path: Path) -> None:
    lines: list[Any] = [
        {"step": 8},
        {"step": "x", "values": 3},
        [],
        *RUNS["ddp"]["rank-0.weights.jsonl"],
    ]
    assert told(tmp_path, {**RUNS["ddp"], "rank-0.weights.jsonl": lines}) == []
