"""Every data-parallel strategy trains to the single process's curve, on real CPU ranks.

A few rows run in `make test`, one of each family with a launcher that is started cold; the others
warm, in `make test-all`; all of them cold where $WORKBENCH_STRATEGY_ROWS names a file for the table.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from workbench.errors import UsageError

from .table import (
    STEPS,
    Row,
    check,
    distance,
    ejected,
    logged,
    record,
    row,
    rows_to_run,
)

pytestmark = pytest.mark.slow
TOGETHER = ("optimizer", "parameters")
BUCKETS = {"reduce_bucket": 30_000, "gather_bucket": 20_000}
HALF = "bf16 keeps 8 bits of a number"
FP16 = "fp16 keeps 11 bits of a number (and Accelerate adds no loss scaler on a CPU)"
EIGHT = "fp8 keeps 4 bits of a number; emulated on CPU ranks"
LOSSY = "the hook compresses gradients"


ROWS = [
    row("ddp", 2),
    row("ddp", 4, bucket_views=True, find_unused=True, accumulate=2, always=True),
    row("ddp", 2, static_graph=True, reduce_bucket=20_000, recompute="full"),
    row("ddp", 2, sync_every_micro_batch=True, accumulate=4),
    row("ddp", 2, comm_hook="fp16", accumulate=2, tolerance=1e-3, why=LOSSY),
    row("ddp", 2, comm_hook="bf16", tolerance=1e-3, why=LOSSY),
    row(
        "ddp",
        2,
        comm_hook="powersgd",
        tolerance=3e-2,
        why=f"{LOSSY} to rank 1",
        always=True,
    ),
    row("ddp", 2, precision="bf16", tolerance=5e-3, why=HALF),
    row("zero1", 2, engine="torch", accumulate=2, recompute="full"),
    row("zero1", 4, engine="torch"),
    row("fsdp", 2),
    row("fsdp", 4),
    row("fsdp", 1),
    row("fsdp-grad-op", 2),
    row("fsdp-grad-op", 4, accumulate=2, sync_every_micro_batch=False),
    row("hsdp", 4, accumulate=2),
    row("fsdp", 2, recompute="full", offload=TOGETHER, always=True, cold=True),
    row("fsdp", 2, meta_init=True, state_dict="full", accumulate=2),
    row("fsdp", 2, precision="bf16", tolerance=5e-3, why=HALF),
    row("fsdp", 2, precision="fp16", tolerance=5e-3, why=FP16),
    row("fsdp", 2, engine="fsdp1"),
    row("fsdp", 4, engine="fsdp1", recompute="full"),
    row("fsdp-grad-op", 2, engine="fsdp1", wrap_min_parameters=20_000, accumulate=2, always=True),
    row("zero1", 2, accumulate=2),
    row("zero1", 4),
    row("zero2", 2, offload=("optimizer",), accumulate=2, **BUCKETS, always=True, cold=True),
    row("zero2", 4, overlap_gradients=False),
    row("zero3", 1),
    row("zero3", 2),
    row("zero3", 4, accumulate=2),
    row("zero3", 2, offload=TOGETHER, recompute="full", live_parameters=50_000, **BUCKETS),
    row("zero1", 2, precision="bf16", tolerance=5e-3, why=HALF),
    row("zero3", 2, precision="bf16", tolerance=5e-3, why=HALF),
    row("single", 1, precision="fp8", tolerance=5e-3, why=EIGHT),
    row("ddp", 2, precision="fp8", tolerance=5e-3, why=EIGHT),
    row("zero1", 2, engine="torch", precision="fp8", tolerance=5e-3, why=EIGHT),
    row("fsdp", 2, precision="fp8", tolerance=5e-3, why=EIGHT),
    row("fsdp-grad-op", 2, precision="fp8", tolerance=5e-3, why=EIGHT),
    row("hsdp", 4, precision="fp8", tolerance=5e-3, why=EIGHT),
]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    found = row("single", 1).run(tmp_path_factory.mktemp("runs"))
    assert found["loss_first"] == pytest.approx(math.log(256), rel=1e-4)
    return found


def _skip_without_torchao(one: Row) -> None:
    if one.precision == "fp8":
        pytest.importorskip("torchao", reason="pip install 'training-workbench[lowbit]'")


@pytest.mark.parametrize("one", rows_to_run(ROWS))
def test_the_curve_is_the_single_process_one(
    tmp_path: Path, alone: dict[str, Any], one: Row
) -> None:
    _skip_without_torchao(one)
    check(one, alone, tmp_path)


RESUMED = [
    row("zero1", 2, engine="torch", always=True),
    row("fsdp", 2, state_dict="full", meta_init=True),
    row("fsdp", 2),
    row("fsdp", 2, precision="fp8", tolerance=5e-3, why=EIGHT, always=True),
    row("zero1", 2),
    row("zero2", 2, offload=("optimizer",)),
    row("zero3", 2, always=True),
]


@pytest.mark.parametrize("one", rows_to_run(RESUMED))
def test_a_resumed_run_ends_where_the_whole_one_does(
    tmp_path: Path, alone: dict[str, Any], one: Row
) -> None:
    _skip_without_torchao(one)
    folder = ("--checkpoint-dir", str(tmp_path / "checkpoints"))
    whole = one.run(tmp_path / "whole", *folder, "--checkpoint-every", "10")
    assert distance(whole["loss_last"], alone["loss_last"]) < one.tolerance
    at = tmp_path / "checkpoints" / "step-00000010"
    rest = one.run(tmp_path / "rest", *folder, "--resume", str(at))
    assert rest["steps"] == STEPS - 10
    assert rest["loss_last"] == pytest.approx(whole["loss_last"], rel=1e-6)


@pytest.mark.parametrize("strategy", ["fsdp", pytest.param("zero3", marks=pytest.mark.full)])
def test_the_printed_command_runs_without_the_workbench(
    tmp_path: Path, alone: dict[str, Any], strategy: str
) -> None:
    """One of them always; with the whole table, every row's."""
    one = row(strategy, 2, accumulate=2)
    printed = ejected(one.request(tmp_path / "runs"), tmp_path)
    assert distance(logged(printed), alone["logged"]) < 2e-4


def test_deepspeed_in_fp16_is_refused_on_a_cpu(tmp_path: Path) -> None:
    one = row("zero2", 2, precision="fp16", tolerance=5e-3, why=FP16)
    with pytest.raises(UsageError, match="Type fp16 is not supported on your device"):
        one.request(tmp_path)
    record(one, None, None, "DeepSpeed: 'Type fp16 is not supported on your device'")
