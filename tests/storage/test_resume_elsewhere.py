"""A run whose machine vanishes goes on elsewhere from what was pushed, to the very same weights."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

import workbench as wb
from tests.cli.conftest import Command, command  # noqa: F401  (a fixture)
from tests.conftest import until
from tests.storage.conftest import BUCKET, S3
from workbench.store import processes
from workbench.store.files import read_json

pytestmark = pytest.mark.slow
STEPS = 40
SHAPE = (
    *("--layers", "1", "--hidden", "32", "--seq-len", "16", "--micro-batch", "2"),
    *("--warmup", "2", "--eval-every", "0", "--log-every", "1", "--fingerprint"),
    *("--steps", str(STEPS), "--checkpoint-every", "2", "--keep-last", "3"),
)


def vanish(run: wb.Run) -> None:
    """The machine is gone: watcher, supervisor, launcher and ranks, by SIGKILL and in that order."""
    state = read_json(run.directory / "state.json") or {}
    supervisor = psutil.Process(state["supervisor"]["pid"])
    watcher = supervisor.parent()
    assert watcher is not None
    assert any("watcher" in word for word in watcher.cmdline()), watcher.cmdline()
    for process in (watcher, supervisor):
        process.kill()
    until(lambda: not _killed(run), 30, "the end of all its processes")
    assert not (run.directory / "exit.json").exists(), "it was to end in mid-training"


def _killed(run: wb.Run) -> list[processes.ProcessDoc]:
    left = processes.find_marked(run.document["marker"])
    for process in left:
        processes.send_signal(process, 9)
    return left


def fingerprint(run: wb.Run) -> str:
    found = re.findall(r"fingerprint ([0-9a-f]{64})", run.logs(0))
    assert found, run.logs(tail=20)
    return found[-1]


def losses(run: wb.Run) -> dict[int, float]:
    """Of each step as the curve has it: the latest word."""
    return {int(line["step"]): line["loss"] for line in run.metrics(0)}


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.full)])
def test_it_goes_on_in_one_curve_bit_for_bit(
    ranks: int,
    s3: S3,
    store: Path,
    tmp_path: Path,
    start: Callable[..., wb.Run],
    command: Command,  # noqa: F811
) -> None:
    undisturbed = start("gpt", SHAPE, processes=ranks, name="undisturbed")
    assert undisturbed.wait(240) == "succeeded", undisturbed.logs(tail=20)
    run = start("gpt", SHAPE, processes=ranks, name="moved")
    until(run.checkpoints, 240, "a checkpoint")
    vanish(run)
    url = f"{BUCKET}/runs"
    pushed = command("push", run.id, url, "--store", str(store), "--json")
    assert pushed.code == 0, pushed.err
    step = json.loads(pushed.out)["step"]
    shutil.rmtree(run.directory)

    there = tmp_path / "elsewhere" / "runs"
    resumed = command("resume", f"{url}/moved", "--store", str(there), "--wait", "--json")
    assert resumed.code == 0, resumed.err + resumed.out
    again = wb.Run(wb.Store(there).find("moved"))
    assert again.outcome == "succeeded"
    starts = [one for one in again.view()["attempts"] if one["event"] == "start"]
    assert [one["first_step"] for one in starts] == [0, step]
    assert sorted(losses(again)) == list(range(1, STEPS + 1)), "one curve"
    assert losses(again) == losses(undisturbed)
    assert fingerprint(again) == fingerprint(undisturbed)
