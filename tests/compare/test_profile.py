"""A profile's numbers: hand-made traces with known answers, and real ranks of which we know why."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import workbench as wb
from workbench.compare.profile import tracing
from workbench.compare.profile.analysis import profiles, read_profile
from workbench.compare.profile.merge import merged_trace
from workbench.compare.profile.spans import united, within, without
from workbench.compare.profile.values import PARTS
from workbench.launching.capture.profiling import VARIABLE
from workbench.launching.steering import look
from workbench.store.layout import RunPaths
from workbench.store.queue_files import QueueFiles

ZERO = 1_700_000_000_000_000_000
MS = 1000.0  # microseconds, the unit of a trace


def span(kind: str, name: str, begin_ms: float, ms: float, thread: Any = 1) -> dict[str, Any]:
    found = {"ph": "X", "cat": kind, "name": name, "ts": begin_ms * MS, "dur": ms * MS}
    return {**found, "pid": 77, "tid": thread}


def write(
    store: Path, rank: int, events: list[Any], ends_ms: list[float], waited: float | None = None
) -> RunPaths:
    """A rank's trace as the ranks leave it; step 11 begins at 0 ms."""
    paths = RunPaths(store / "made")
    folder = tracing.folder_of(paths, 11)
    folder.mkdir(parents=True, exist_ok=True)
    with gzip.open(folder / f"rank-{rank}.trace.json.gz", "wt") as file:
        json.dump({"baseTimeNanoseconds": ZERO, "traceEvents": events}, file)
    steps = [
        {"step": 11 + at, "end_ns": ZERO + round(end * 1e6), "data_seconds": waited}
        for at, end in enumerate(ends_ms)
    ]
    about = {"rank": rank, "begun_ns": ZERO, "steps": steps, "stop_seconds": 0.5}
    (folder / f"rank-{rank}.json").write_text(json.dumps(about))
    return paths


def parts(one: Any) -> dict[str, float]:
    """Milliseconds of each part of a step."""
    return {part: round(1e3 * getattr(one, f"{part}_seconds"), 3) for part in PARTS}


def test_gpu_kernels_hide_communication_and_the_rest_is_exposed(tmp_path: Path) -> None:
    events = [
        span("cpu_op", "aten::mm", 0, 90),  # the host launches; that is no computing on a GPU
        span("kernel", "sm90_xmma_gemm", 10, 30, thread=7),
        span("kernel", "sm90_xmma_gemm", 35, 15, thread=20),  # another stream, overlapping
        span("kernel", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 45, 20, thread=24),
        span("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 60, 10, thread=7),
        span("user_annotation", "enumerate(DataLoader)#_Iter.__next__", 0, 5),
        span("gpu_user_annotation", "whatever", 0, 100),
        span("kernel", "elementwise", 120, 60, thread=7),
        span("gpu_memcpy", "Memcpy DtoD (Device -> Device)", 185, 10, thread=7),  # its own work
        "no event", {"ph": "X", "ts": "x"},
    ]  # fmt: skip
    profile = read_profile(write(tmp_path, 0, events, [100, 200]))
    first, second = profile.ranks[0].steps
    assert profile.ranks[0].device == "cuda"
    assert parts(first) == {"compute": 40, "exposed": 15, "copies": 5, "input": 5, "idle": 35}
    assert first.communication_seconds == pytest.approx(0.020)
    assert parts(second) == {"compute": 70, "exposed": 0, "copies": 0, "input": 0, "idle": 30}
    longest = profile.operations[0]
    assert (longest.name, longest.calls) == ("elementwise", 0.5)
    assert longest.seconds == pytest.approx(0.030)
    assert profile.waits == ()


def test_cpu_operators_compute_and_a_collective_under_way_communicates(tmp_path: Path) -> None:
    events = [
        span("user_annotation", "enumerate(DataLoader)#_Iter.__next__", 0, 10),
        span("cpu_op", "aten::stack", 2, 6),  # puts the batch together: input
        span("cpu_op", "aten::linear", 20, 20),
        span("cpu_op", "aten::addmm", 25, 10),
        span("cpu_op", "autograd::engine::evaluate_function: X", 40, 30),  # a hook waits in there
        span("cpu_op", "c10d::allreduce_", 50, 1),
        span("user_annotation", "gloo:all_reduce", 35, 30, thread=9),
    ]
    profile = read_profile(write(tmp_path, 0, events, [100]))
    (step,) = profile.ranks[0].steps
    assert parts(step) == {"compute": 20, "exposed": 25, "copies": 0, "input": 10, "idle": 45}
    own = {one.name: round(1e3 * one.seconds, 3) for one in profile.operations}
    assert own == {"aten::linear": 10, "aten::addmm": 10, "aten::stack": 6}


def test_without_a_dataloader_the_hooks_wait_counts(tmp_path: Path) -> None:
    paths = write(tmp_path, 0, [span("cpu_op", "aten::mm", 50, 10)], [100], waited=0.03)
    (step,) = read_profile(paths).ranks[0].steps
    assert parts(step) == {"compute": 10, "exposed": 0, "copies": 0, "input": 30, "idle": 60}


def test_who_waits_for_whom_and_not_while_it_computes(tmp_path: Path) -> None:
    early = [
        span("user_annotation", "gloo:all_reduce", 10, 45, thread=9),
        span("cpu_op", "aten::mm", 10, 10),
    ]
    late = [
        span("cpu_op", "aten::mm", 0, 50),
        span("user_annotation", "gloo:all_reduce", 50, 5, thread=9),
    ]
    write(tmp_path, 0, early, [60])
    profile = read_profile(write(tmp_path, 1, late, [60]))
    (wait,) = profile.waits
    assert (wait.rank, wait.for_rank) == (0, 1)
    assert wait.seconds == pytest.approx(0.030)  # 40 ms, 10 of them computing
    assert profile.sentences() == ["Rank 0 waits 30 ms a step for rank 1."]


def test_memory_is_bounded_and_keeps_its_peak(tmp_path: Path) -> None:
    events = [
        {"ph": "i", "name": "[memory]", "ts": at * MS / 100, "args": {"Device Type": kind, "Total Allocated": size}}
        for at in range(5000)
        for kind, size in ((0, 9 << 40), (1, 7_000_000 if at == 4321 else 1_000 + at))
    ]  # fmt: skip
    (one,) = read_profile(write(tmp_path, 0, events, [60])).ranks
    assert len(one.memory) <= 300
    assert max(size for _, size in one.memory) == 7_000_000  # the GPU's, not the host's


def test_parts_of_any_trace_add_up_to_the_step(tmp_path: Path) -> None:
    chance = random.Random(5)
    kinds = [
        ("kernel", "gemm"), ("kernel", "ncclDevKernel_AllGather"), ("gpu_memcpy", "Memcpy"),
        ("user_annotation", "enumerate(DataLoader)#x"),
    ]  # fmt: skip
    for _ in range(30):
        events = [
            span(
                *chance.choice(kinds),
                chance.uniform(-20, 110),
                chance.uniform(0, 20),
                thread=at % 3,
            )
            for at in range(chance.randrange(1, 60))
        ]
        for step in read_profile(write(tmp_path, 0, events, [40, 90])).ranks[0].steps:
            total = sum(getattr(step, f"{part}_seconds") for part in PARTS)
            assert total == pytest.approx(step.wall_seconds, rel=1e-9)
            assert step.exposed_seconds <= step.communication_seconds + 1e-12


def test_sets_of_time_agree_with_counting_moments() -> None:
    chance = random.Random(3)
    for _ in range(200):
        one, two = (
            [(float(a), float(a + chance.randrange(8))) for a in chance.choices(range(40), k=6)]
            for _ in range(2)
        )
        left = without(united(one), united(two))
        for moment in range(50):
            at = moment + 0.5
            inside = [any(a <= at < b for a, b in spans) for spans in (one, two, left)]
            assert inside[2] == (inside[0] and not inside[1])
        assert within(united(one), 0, 50) == len(
            {at for at in range(50) if any(a <= at + 0.5 < b for a, b in one)}
        )


def test_what_is_refused_says_what_to_do(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path / "made")
    with pytest.raises(wb.UsageError, match="workbench profile SCRIPT"):
        read_profile(paths)
    for first, steps, said in ((2, 0, "1 to 100"), (2, 101, "1 to 100"), (1, 5, "2 or later")):
        with pytest.raises(wb.UsageError, match=said):
            tracing.request_text(first, steps)
    write(tmp_path, 0, [], [10])
    (folder,) = profiles(paths)
    (folder / "rank-0.trace.json.gz").write_bytes(b"no gzip")
    with pytest.raises(wb.StoreError, match="is not a readable trace"):
        read_profile(paths)
    (folder / "rank-0.json").unlink()
    (folder / "rank-0.error").write_text("RuntimeError: why")
    assert read_profile(paths).problems == {0: "RuntimeError: why"}


def test_a_run_that_waits_in_the_queue_is_not_asked(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path / "later")
    paths.directory.mkdir()
    paths.run.write_text(json.dumps({"run": "later", "processes": 2, "queued_at": 1.0}))
    waits = QueueFiles(tmp_path).waits("later")
    waits.parent.mkdir(parents=True)
    waits.touch()
    with pytest.raises(wb.UsageError, match="waits in the queue"):
        tracing.ask(wb.Run(paths))
    with pytest.raises(wb.UsageError, match="later waits in the queue"):
        look(paths)


@pytest.mark.full
@pytest.mark.slow
def test_a_real_run_with_a_slow_rank(start: Callable[..., wb.Run]) -> None:
    pytest.importorskip("accelerate", reason="the train extra is not installed")
    run = start(
        "raw_ddp.py", ("--lag", "0.2", "--steps", "100000"), strategy="ddp", processes=2,
        environment={VARIABLE: tracing.request_text(3, 3, memory=True)},
    )  # fmt: skip
    paths = RunPaths(run.directory)
    folder = tracing.folder_of(paths, 3)
    assert tracing.collect(run, folder, timeout=200)
    profile = read_profile(paths)
    assert [one.rank for one in profile.ranks] == [0, 1]
    for one in profile.ranks:
        assert [step.step for step in one.steps] == [3, 4, 5]
        assert one.memory
        for step in one.steps:
            total = sum(getattr(step, f"{part}_seconds") for part in PARTS)
            assert total == pytest.approx(step.wall_seconds)
    assert (profile.waits[0].rank, profile.waits[0].for_rank) == (0, 1)
    assert profile.waits[0].seconds > 0.15
    assert profile.ranks[0].seconds("exposed") > 0.15
    with gzip.open(merged_trace(profile)) as file:
        events = json.load(file)["traceEvents"]
    assert {one["pid"] for one in events} == {0, 1}
    rows = [one for one in events if one.get("cat") == "step"]
    assert [one["name"] for one in rows] == [f"step {step}" for step in (3, 4, 5)] * 2
    # Both ranks on one clock: an all-reduce ends on both within moments.
    ends = {
        rank: [one["ts"] + one["dur"] for one in events if one["pid"] == rank and one["name"] == "gloo:all_reduce"]
        for rank in (0, 1)
    }  # fmt: skip
    assert abs(max(ends[0]) - max(ends[1])) < 150 * MS
    # And once more, from outside, while it runs.
    again = tracing.profile(run, 2, timeout=200)
    assert read_profile(paths, again).ranks[0].steps[0].step > 5
    assert len(profiles(paths)) >= 2
    run.stop(now=True)
    with pytest.raises(wb.UsageError, match="has ended"):
        tracing.ask(run)
