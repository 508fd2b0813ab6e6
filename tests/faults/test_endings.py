"""Rows 21, 22, 23, 28, 37: memory that runs out, clocks that jump, ranks that do not end."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import workbench as wb
from tests.conftest import until
from tests.faults.matrix import record
from workbench.store.files import read_json

pytestmark = [pytest.mark.slow, pytest.mark.full]
Start = Callable[..., wb.Run]
GROUPS = Path("/sys/fs/cgroup/memory")


def awkward(start: Start, trouble: str, *more: str, **options: object) -> wb.Run:
    return start("awkward.py", ("--trouble", trouble, *more), **options)


def verdict(run: wb.Run) -> dict:
    assert run.wait(120) == "failed", run.status
    return read_json(run.directory / "exit.json")["finding"]


def test_allocations_that_fail_name_rank_and_remedy(start: Start) -> None:
    gpu, ram = awkward(start, "cuda-oom"), awkward(start, "allocation")
    found = verdict(gpu)
    assert (found["kind"], found["rank"]) == ("out-of-memory", 1)
    assert "micro-batch" in found["next"]
    record(23, f"out-of-memory of rank 1: {found['next'][:90]}…")
    found = verdict(ram)
    assert (found["kind"], found["rank"]) == ("out-of-memory", 1)
    record(22, "out-of-memory of rank 1, with what helps")


@contextlib.contextmanager
def memory_group(limit: int) -> Iterator[Path]:
    group = GROUPS / f"workbench-test-{time.monotonic_ns()}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(limit))
    except OSError:
        pytest.skip("a memory group of one's own needs root and cgroup v1")
    try:
        yield group
    finally:
        with contextlib.suppress(OSError):
            group.rmdir()


def test_the_kernels_memory_killer_is_told_from_other_kills(start: Start) -> None:
    with memory_group(300 << 20) as group:
        environment = {"MEMORY_GROUP": str(group)}
        found = verdict(awkward(start, "grows", "--steps", "500", environment=environment))
    assert (found["kind"], found["rank"]) == ("killed-for-memory", 1), found
    record(21, f"killed-for-memory of rank 1: {found['evidence']}")


def test_clocks_that_jump_make_neither_hangs_nor_negative_times(start: Start) -> None:
    run = awkward(start, "clock", "--steps", "400")
    assert run.wait(120) == "succeeded"
    assert not {"hang", "straggler", "deadlock"} & {one.kind for one in run.findings()}
    view = run.view()
    assert view["elapsed_seconds"] >= 0
    assert view["step_seconds_median"] < 5
    assert view["steps"] == 400
    seconds = [row["step_seconds"] for row in run.metrics() if row["step_seconds"] is not None]
    assert min(seconds) >= 0
    record(28, "one rank an hour back, one a day on, at step 12: no finding, no negative step time")


def test_a_rank_that_does_not_exit(start: Start) -> None:
    lingers, tidies = awkward(start, "lingers"), awkward(start, "tidies-up")
    until(lambda: lingers.view()["steps"] == 30, 90, "the last step")
    at = time.monotonic()
    assert lingers.wait(200) == "succeeded"
    ended = time.monotonic() - at
    assert lingers.summary()["steps"] == 30
    until(lambda: any(one.kind == "exit-hang" for one in tidies.findings()), 120, "exit-hang")
    (found,) = (one for one in tidies.findings() if one.kind == "exit-hang")
    assert found.rank == 0
    assert tidies.status.live
    assert tidies.stop(now=True)["processes_left"] == 0
    record(
        37,
        f"exit-hang of rank 0; ended as succeeded {ended:.0f} s after the last step where every script was over, else left to people",
    )
