"""What a rank does when it is asked for a trace: the same steps on all, files, reasons, no more."""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the train extra is not installed")

import workbench as wb
from tests.conftest import until
from tests.launch.ranks import Ranks
from workbench.compare.profile import tracing
from workbench.launching.capture import profiling
from workbench.store.layout import RunPaths

pytestmark = [pytest.mark.slow, pytest.mark.full]
Begin = Callable[..., Ranks]


def request(first: int, steps: int) -> dict[str, str]:
    return {profiling.VARIABLE: tracing.request_text(first, steps)}


def folder(ranks: Ranks, first: int) -> Path:
    return tracing.folder_of(RunPaths(ranks.folder), first)


def test_the_steps_asked_for_are_traced_on_every_rank_and_no_other(begin: Begin) -> None:
    ranks = begin("loops.py", "ddp", "--steps", "12", ranks=2, **request(4, 3))
    assert ranks.wait() == [0, 0]
    where = folder(ranks, 4)
    for rank in (0, 1):
        about = json.loads((where / f"rank-{rank}.json").read_text())
        assert [one["step"] for one in about["steps"]] == [4, 5, 6]
        ends = [about["begun_ns"], *(one["end_ns"] for one in about["steps"])]
        assert ends == sorted(ends)
        assert [one["step"] for one in ranks.lines(rank) if one.get("profiled")] == [4, 5, 6]
        with gzip.open(where / f"rank-{rank}.trace.json.gz") as file:
            trace = json.load(file)
        names = {one.get("name") for one in trace["traceEvents"]}
        assert "gloo:all_reduce" in names
        zero = trace["baseTimeNanoseconds"]
        begun = [
            one["ts"] * 1e3 + zero for one in trace["traceEvents"] if one.get("cat") == "cpu_op"
        ]
        assert min(begun) > about["begun_ns"] - 1e6
        assert max(begun) < ends[-1] + 1e6
    assert not list(where.glob("*.error"))
    assert not list(where.glob("*partial*"))


def test_a_living_run_is_asked_and_goes_on(begin: Begin) -> None:
    ranks = begin("loops.py", "ddp", "--steps", "100000", "--step-seconds", "0.1", ranks=2)
    until(lambda: len(ranks.lines()) >= 3, 120, "three steps")
    asked = ranks.folder / "control" / "profile"
    first = ranks.lines()[-1]["step"] + 20
    asked.write_text(tracing.request_text(first, 2))
    where = folder(ranks, first)
    until(lambda: len(list(where.glob("rank-?.json"))) == 2, 120, "both traces")
    # Asked too late: the reason, and the training continues.
    asked.write_text(tracing.request_text(2, 2))
    late = folder(ranks, 2)
    until(lambda: len(list(late.glob("rank-?.error"))) == 2, 60, "both reasons")
    assert (late / "rank-1.error").read_text().startswith(profiling.LATE)
    # Asked while another trace is awaited: the reason again, and that other one is not disturbed.
    far = ranks.lines()[-1]["step"] + 100_000
    asked.write_text(tracing.request_text(far, 2))
    at = time.time()  # the ranks look once a second
    until(
        lambda: min(ranks.lines(rank)[-1]["time"] for rank in (0, 1)) > at + 1.2,
        60,
        "both ranks to have looked",
    )
    asked.write_text(tracing.request_text(far + 1, 2))
    until(lambda: len(list(folder(ranks, far + 1).glob("rank-?.error"))) == 2, 60, "both refused")
    assert not folder(ranks, far).exists()
    done = ranks.lines()[-1]["step"]
    until(lambda: ranks.lines()[-1]["step"] > done + 5, 60, "it goes on")
    traced = [one["step"] for one in ranks.lines(1) if one.get("profiled")]
    assert traced == [first, first + 1]


def test_a_run_that_ends_too_early_leaves_what_there_is(begin: Begin) -> None:
    ranks = begin("loops.py", "said", "--steps", "6", **request(5, 50))
    assert ranks.wait() == [0]
    where = folder(ranks, 5)
    reason = where / "rank-0.error"
    if reason.exists():  # this loop tells its steps itself and has no torch
        assert "torch" in reason.read_text()
    else:
        about = json.loads((where / "rank-0.json").read_text())
        assert [one["step"] for one in about["steps"]] == [5, 6]


def test_a_script_with_a_profiler_of_its_own_keeps_it(begin: Begin, tmp_path: Path) -> None:
    script = tmp_path / "own.py"
    script.write_text(
        "import torch\n"
        "model = torch.nn.Linear(4, 1)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as own:\n"
        "    for _ in range(6):\n"
        "        model(torch.ones(2, 4)).sum().backward()\n"
        "        optimizer.step()\n"
        "assert any('addmm' in one.key for one in own.key_averages())\n"
    )
    ranks = begin(str(script), **request(3, 2))
    assert ranks.wait() == [0]
    assert "profiler of its own" in (folder(ranks, 3) / "rank-0.error").read_text()
    assert len(ranks.lines()) == 6


@pytest.mark.parametrize("script", ["accelerate_loop.py", "hf_trainer.py"])
def test_other_loops_are_traced_too(start: Callable[..., wb.Run], script: str) -> None:
    run = start(script, strategy="ddp", processes=2, environment=request(2, 1))
    assert run.wait(240) == "succeeded", run.logs(tail=20)
    where = tracing.folder_of(RunPaths(run.directory), 2)
    assert sorted(path.name for path in where.iterdir()) == [
        f"rank-{rank}.{end}" for rank in (0, 1) for end in ("json", "trace.json.gz")
    ]
