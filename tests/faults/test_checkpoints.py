"""Rows 13, 15, 16: disks that fill in a save, checkpoints that break, resumes that differ."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import workbench as wb
from tests.faults.lab import Lab
from tests.faults.matrix import record

pytestmark = pytest.mark.slow
TINY = ("--layers", "1", "--hidden", "32", "--heads", "2", "--seq-len", "16", "--eval-every", "0")


MIDDLE = "step-00000020"


def train(store: Path, *arguments: str, **options: object) -> wb.Run:
    run = wb.launch("gpt", [*TINY, *arguments], cpu=True, store=store, warm=True, **options)
    assert run.wait(120) == "succeeded", run.logs(tail=20)
    return run


@pytest.mark.full
def test_full_disk_in_a_checkpoint(store: Path) -> None:
    """The lab's own save does not forgive: the run fails, is told why, and resumes by hand."""
    lab = Lab(store).begun(45)
    at = lab.inject("disk-full", rank=0)
    seconds = lab.ended(at)
    assert lab.run.outcome == "failed"
    kinds = {one.kind for one in lab.run.findings()}
    assert "disk-full" in kinds
    whole = [one for one in lab.run.checkpoints(check=True) if not one.problem]
    assert whole
    lab.run.resume()
    lab.back(time.monotonic())
    lab.run.stop()
    assert lab.unbroken()
    record(
        13,
        f"a script that dies of it: disk-full named after {seconds:.1f} s, resumed from step {whole[0].step}",
    )


@pytest.mark.full
def test_broken_checkpoints_are_passed_over_before_any_rank_starts(store: Path) -> None:
    run = train(store, "--steps", "40", "--checkpoint-every", "10", processes=2)
    newest = [one.path for one in run.checkpoints()]
    assert [path.name for path in newest] == [f"step-{step:08d}" for step in (40, 30, 20, 10)]
    files = [sorted(p for p in folder.rglob("*") if p.is_file()) for folder in newest[:3]]
    big = [max(found, key=lambda path: path.stat().st_size) for found in files]
    big[0].write_bytes(big[0].read_bytes()[:1000])  # truncated
    flipped = bytearray(big[1].read_bytes())
    flipped[len(flipped) // 2] ^= 1
    big[1].write_bytes(bytes(flipped))  # one bit
    big[2].unlink()  # missing
    began = time.monotonic()
    problems = [one.problem for one in run.checkpoints(check=True)]
    checked = time.monotonic() - began
    assert all(problems[:3])
    assert not problems[3]
    with pytest.raises(wb.UsageError, match=r"cannot be used.*Others"):
        run.resume("step-00000030")
    with pytest.raises(wb.UsageError, match=r"has finished.*give it more: workbench resume"):
        run.resume()
    again = run.resume(arguments=["--steps", "60"])  # the other arguments stay
    assert again.wait(120) == "succeeded", again.logs(tail=20)
    assert [row["step"] for row in again.metrics()] == list(range(1, 61))
    for refused, why in ((["--layers", "2"], "layers 1, not 2"), (["--stepz", "9"], "stepz")):
        with pytest.raises(wb.UsageError, match=why):
            run.resume(arguments=refused)
    for steps in (63, 66):  # other arguments than before, more of them, and the same once more
        run.resume("step-00000010", arguments=["--lr", "1e-4", "--steps", str(steps)])
        assert run.wait(120) == "succeeded", run.logs(tail=20)
    run.resume("step-00000010")
    assert run.wait(120) == "succeeded", run.logs(tail=20)
    assert [row["step"] for row in run.metrics()] == list(range(1, 67))
    record(
        15,
        f"truncated, one bit flipped, a file missing: all three found in {checked:.2f} s, the fourth taken",
    )


@pytest.mark.full
def test_a_course_that_was_given_up_is_not_resumed_from(store: Path) -> None:
    """Back to step 20 by hand: a restart after that must not jump to the end of the old course."""
    lab = Lab(store, restarts=1).begun(70)
    lab.run.stop()
    lab.run.resume("step-00000020")
    lab.back(time.monotonic())
    given_up = max(one.step for one in lab.run.checkpoints() if one.abandoned)
    assert given_up >= 60
    lab.signal(1)
    lab.back(time.monotonic(), attempt=3)
    assert lab.attempts("start")[2]["first_step"] < given_up
    lab.run.stop(now=True)
    assert lab.unbroken()


@pytest.mark.full
def test_resume_with_fewer_ranks_and_in_another_strategy(store: Path) -> None:
    whole = train(store, "--steps", "40", "--micro-batch", "8", strategy="single", processes=1)
    half = train(
        store, "--steps", "40", "--micro-batch", "4", "--checkpoint-every", "20", processes=2
    )
    sharded = half.resume(MIDDLE, strategy="fsdp", processes=2)
    assert sharded.wait(120) == "succeeded", sharded.logs(tail=20)
    single = half.resume(MIDDLE, strategy="single", processes=1, arguments=["--micro-batch", "8"])
    assert single.wait(120) == "succeeded", single.logs(tail=20)
    expected = {row["step"]: row["loss"] for row in whole.metrics()}
    for run in (sharded, single):
        rows = run.metrics()
        assert [row["step"] for row in rows] == list(range(21, 41))
        worst = max(abs(row["loss"] - expected[row["step"]]) for row in rows)
        assert worst < 1e-4
    record(
        16,
        "ddp2 at step 20 goes on as fsdp2 and as a single process on the uninterrupted curve (1e-4)",
    )


def test_a_run_without_a_checkpoint_starts_again_from_the_beginning(store: Path) -> None:
    run = train(store, "--steps", "3", strategy="single", processes=1)
    with pytest.raises(wb.UsageError, match=r"has finished.*no checkpoint.*workbench rerun"):
        run.resume()
    again = run.resume(arguments=["--steps", "5"])
    assert "starts from the beginning" in again.notes[0]
    assert again.wait(120) == "succeeded", again.logs(tail=20)
    assert [row["step"] for row in again.metrics()] == list(range(1, 6))
