"""A copy of a live run's directory is a run of its own: nothing done to it touches the original."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest

import workbench as wb
from tests.conftest import until


@pytest.mark.slow
def test_a_stop_and_a_resume_of_the_copy_leave_the_original_alone(
    start: Callable[..., wb.Run],
) -> None:
    run = start("gpt", ("--size", "1", "--steps", "100000", "--checkpoint-every", "2"))
    run.wait(240, steps=6)
    until(run.checkpoints, 60, "a checkpoint")
    copied = run.directory.with_name("copy")
    # Files may vanish meanwhile: cp says so and goes on.
    subprocess.run(["cp", "-r", run.directory, copied], check=False)
    copy = wb.attach("copy", copied.parent)
    assert run.status.state == "running"
    assert copy.status.state == "interrupted"
    assert copy.stop(now=True)["processes_left"] == 0
    assert run.status.state == "running"
    step = next(one.step for one in copy.checkpoints(check=True) if not one.problem)
    again = copy.resume(arguments=["--steps", str(step + 3)], warm=True)
    assert again.id == "copy"
    assert again.wait(240) == "succeeded", again.logs(tail=20)
    assert run.status.state == "running", run.status.message
    run.wait(120, steps=run.view()["steps"] + 2)
    run.stop()
    assert run.outcome == "stopped"
