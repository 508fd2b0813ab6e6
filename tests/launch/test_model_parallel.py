"""Tensor, context and three-dimensional parallelism launched as users do, on real CPU ranks.

All the layouts there are, without the launcher: tests/recipes/test_model_parallel.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import workbench as wb

from .table import Row, check, row, rows_to_run

pytestmark = pytest.mark.slow
MORE = ("--heads", "4", "--layers", "4")


ROWS = [
    row("tp", 2, always=True, cold=True),
    row("tp", 2, sequence_parallel=True, recompute="full"),
    row("tp", 4),
    row("dp2-tp2", 4, accumulate=2),
    row("fsdp2-tp2", 4, sequence_parallel=True),
    row("tp", 2, precision="bf16", tolerance=5e-3, why="bf16 keeps 8 bits of a number"),
    row("cp", 2, cold=True),
    row("cp", 2, cp_method="ulysses"),
    row("cp", 4, recompute="full"),
    row("fsdp2-cp2", 4, accumulate=2),
    row("cp2-tp2", 4),
    row("pp", 2, accumulate=4),
    row("pp", 2, always=True, cold=True),  # fewer micro-batches than stages
    *(row("pp", 2, accumulate=4, schedule=name) for name in ("gpipe", "zero-bubble", "naive")),
    row("pp", 2, accumulate=4, schedule="interleaved", virtual_stages=2),
    *(row("pp", 4, accumulate=4, schedule=name) for name in ("1f1b", "gpipe", "zero-bubble")),
    row("pp2-dp2", 4, accumulate=4),
    row("pp2-tp2", 4, accumulate=4),
    row("pp2-fsdp2", 4, accumulate=4, schedule="gpipe"),
    row("pp2-dp2-tp2", 8, accumulate=2),
    row("pp2-fsdp2-tp2", 8, accumulate=2, schedule="gpipe", sequence_parallel=True),
]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return row("single", 1).run(tmp_path_factory.mktemp("runs"), *MORE)


@pytest.mark.parametrize("one", rows_to_run(ROWS))
def test_the_curve_is_the_single_process_one(
    tmp_path: Path, alone: dict[str, Any], one: Row
) -> None:
    check(one, alone, tmp_path, *MORE)


@pytest.mark.full
@pytest.mark.parametrize("strategy", ["tp", "pp"])
def test_a_stopped_run_goes_on_where_it_stopped(tmp_path: Path, strategy: str) -> None:
    """The graceful stop comes from outside and finds the weights all the same."""
    shape = (*("--layers", "2", "--hidden", "32", "--heads", "2", "--seq-len", "32"), "--seed", "3")
    arguments = [*shape, "--accumulate", "2", "--eval-every", "0", "--steps", "100000"]
    asked: dict[str, Any] = {"strategy": strategy, "processes": 2, "cpu": True, "store": tmp_path}
    asked["warm"] = True
    run = wb.launch("gpt", arguments, **asked)
    run.wait(steps=20)
    assert run.stop()["processes_left"] == 0
    (checkpoint,) = (run.directory / "checkpoints").iterdir()
    done = int(checkpoint.name.removeprefix("step-"))
    resumed = wb.launch("gpt", [*arguments, "--resume", str(checkpoint)], **asked)
    resumed.wait(steps=3)
    resumed.stop()
    straight = wb.launch("gpt", arguments, **asked)
    straight.wait(steps=done + 3)
    straight.stop()
    first, *_ = losses = [row["loss"] for row in straight.metrics()]
    assert losses[done] < first - 0.5  # it is not from the beginning that they are equal
    goes_on = [row["loss"] for row in resumed.metrics()[:3]]
    assert goes_on == pytest.approx(losses[done : done + 3], rel=1e-3)
