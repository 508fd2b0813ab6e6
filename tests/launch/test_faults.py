"""Faults, injected for real: kills, stops, full disks, taken ports, torn lines."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import workbench as wb
from tests.conftest import SCRIPTS, until
from workbench.store import processes
from workbench.store.files import read_json

pytestmark = pytest.mark.slow
Start = Callable[..., wb.Run]
LONG = ("--steps", "100000", "--step-seconds", "0.02")


def steps(run: wb.Run) -> int:
    return run.view().get("steps", 0)


def state(run: wb.Run) -> dict:
    return read_json(run.directory / "state.json")


def left(run: wb.Run) -> list:
    return processes.find_marked(run.document["marker"])


def begun(run: wb.Run, count: int = 20) -> wb.Run:
    until(lambda: steps(run) >= count or not run.status.live, 90, "the first steps")
    assert run.status.live, run.status
    return run


def test_graceful_stop_is_the_same_step_on_all_ranks(start: Start) -> None:
    run = begun(start("accelerate_loop.py", ("--steps", "3000", "--step-seconds", "0.02")))
    result = run.stop()
    assert result == {"run": run.id, "outcome": "stopped", "processes_left": 0}
    assert left(run) == []
    counts = [run.metrics(rank)[-1]["step"] for rank in (0, 1)]
    assert counts[0] == counts[1]
    checkpoints = list((run.directory / "checkpoints").iterdir())
    assert [path.name for path in checkpoints] == [f"step-{counts[0]:08d}"]
    assert (checkpoints[0] / "random_states_1.pkl").exists()
    assert run.summary()["exit_code"] == 0


def test_stop_now_with_sigterm_ignored_and_a_runaway_grandchild(start: Start) -> None:
    run = start("ignores_sigterm.py")
    until(lambda: len(left(run)) >= 5, 60, "launcher, ranks and grandchildren")
    until(lambda: "marker:" in run.logs(0) and "marker:" in run.logs(1), 60, "the bare children")
    bare = [processes.identify(int(run.logs(rank).split()[-1])) for rank in (0, 1)]
    assert all(processes.is_alive(process) for process in bare)
    began = time.monotonic()
    assert run.stop(now=True)["processes_left"] == 0
    assert time.monotonic() - began < 15
    assert left(run) == []
    assert not any(processes.is_alive(process) for process in bare)
    assert run.outcome == "stopped"


def test_stop_of_a_stopped_rank(start: Start) -> None:
    """A process in state T never sees SIGTERM; torchrun alone would wait 30 s for it."""
    run = begun(start("raw_ddp.py", LONG))
    os.kill(state(run)["ranks"]["1"]["pid"], signal.SIGSTOP)
    began = time.monotonic()
    assert run.stop(now=True)["processes_left"] == 0
    assert time.monotonic() - began < 15


def test_killed_rank_is_named(start: Start) -> None:
    run = begun(start("raw_ddp.py", LONG))
    os.kill(state(run)["ranks"]["1"]["pid"], signal.SIGKILL)
    assert run.wait(60) == "failed"
    assert run.summary()["failed_rank"] == 1
    assert "SIGKILL" in run.status.message
    assert left(run) == []


def test_killed_launcher_leaves_no_orphans(start: Start) -> None:
    run = begun(start("raw_ddp.py", LONG))
    os.kill(state(run)["launcher"]["pid"], signal.SIGKILL)
    began = time.monotonic()
    assert run.wait(60) == "failed"
    assert time.monotonic() - began < 15
    assert "launcher was killed by SIGKILL" in run.status.message
    assert left(run) == []


def test_killed_supervisor_is_replaced_and_nothing_is_lost(start: Start) -> None:
    run = begun(start("raw_ddp.py", ("--steps", "400", "--step-seconds", "0.02")))
    os.kill(state(run)["supervisor"]["pid"], signal.SIGKILL)
    until(lambda: run.state == "unsupervised", 10, "the loss of the supervisor to show")
    before = len(run.metrics(0))
    time.sleep(1)
    assert len(run.metrics(0)) > before  # training goes on
    began = time.monotonic()
    again = wb.attach(run.id, run.directory.parent)
    until(lambda: again.state == "running", 5, "the adoption")
    assert time.monotonic() - began < 5
    assert again.wait(90) == "succeeded"
    assert again.view()["steps"] == 400
    assert [row["step"] for row in again.metrics()] == list(range(1, 401))


def test_everything_killed_at_once_is_interrupted(start: Start) -> None:
    run = begun(start("raw_ddp.py", LONG))
    for process in [state(run)["supervisor"], *left(run)]:
        processes.send_signal(process, signal.SIGKILL)
    until(lambda: not run.status.live, 10, "the interruption to show")
    assert (run.state, run.outcome) == ("interrupted", "interrupted")
    assert not (run.directory / "exit.json").exists()
    assert run.summary()["steps"] >= 20


def test_killed_client_leaves_the_run_alone(store: Path) -> None:
    code = (
        "import workbench as wb, time;"
        f"run = wb.launch({str(SCRIPTS / 'raw_ddp.py')!r}, {list(LONG)!r}, cpu=True, store={str(store)!r});"
        "print(run.id, flush=True); time.sleep(600)"
    )
    client = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    run = wb.attach(client.stdout.readline().strip(), store)
    begun(run, 5)
    client.kill()
    client.wait()
    client.stdout.close()
    at_kill = steps(run)
    until(lambda: steps(run) > at_kill + 20, 20, "training to go on")
    assert run.stop()["processes_left"] == 0


def test_pre_emption_stops_gracefully(start: Start) -> None:
    run = begun(start("accelerate_loop.py", ("--steps", "3000", "--step-seconds", "0.02")))
    os.kill(state(run)["supervisor"]["pid"], signal.SIGTERM)
    assert run.wait(30) == "preempted"
    assert list((run.directory / "checkpoints").iterdir())


def test_taken_port_is_retried_on_another(start: Start) -> None:
    with socket.socket() as bound:  # bound but not listening: looks free, cannot be had
        bound.bind(("", 0))
        run = start("raw_ddp.py", ("--steps", "5"), port=bound.getsockname()[1])
        assert run.wait(120) == "succeeded", run.logs()
    assert run.summary()["restarts"] == 1
    assert len(run.metrics()) == 5


def test_a_stop_that_comes_too_late_is_no_stop(start: Start) -> None:
    run = begun(start("raw_ddp.py", ("--steps", "60", "--step-seconds", "0.02")), 5)
    (run.directory / "control" / "stop-at").write_text("100000")  # further than the script goes
    (run.directory / "control" / "stop").touch()
    assert run.wait(60) in {"succeeded", "stopped"}
    ended_whole = len(run.metrics(0)) == 60
    assert (run.outcome == "succeeded") == ended_whole


def test_two_runs_at_once_do_not_clash(start: Start) -> None:
    both = [start("raw_ddp.py", ("--steps", "10"), name="twin") for _ in range(2)]
    assert both[0].id != both[1].id
    assert [run.wait(180) for run in both] == ["succeeded", "succeeded"]


@contextlib.contextmanager
def small_disk(path: Path, size: str) -> Iterator[None]:
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip("mounting a tmpfs needs root")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


def test_full_disk_does_not_end_training(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    with small_disk(disk, "2m"):
        run = wb.launch(
            SCRIPTS / "raw_ddp.py",
            ["--steps", "500", "--step-seconds", "0.02"],
            cpu=True,
            store=disk / "runs",
        )
        begun(run)
        with (disk / "filler").open("wb", buffering=0) as filler, contextlib.suppress(OSError):
            while True:
                filler.write(b"x" * 4096)
        count = steps(run)
        time.sleep(3)
        alive = [processes.is_alive(rank) for rank in state(run)["ranks"].values()]
        assert alive == [True, True]
        (disk / "filler").unlink()
        until(lambda: steps(run) > count + 20, 20, "writing to go on")
        assert run.wait(90) == "succeeded", run.status
        assert [row["step"] for row in run.metrics(1)] == list(range(1, 501))
        assert run.view()["lines_skipped"] == 0


def test_full_disk_at_the_end_still_tells_how_it_ended(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    with small_disk(disk, "2m"):
        script = tmp_path / "short.py"
        shutil.copy(SCRIPTS / "raw_ddp.py", script)
        run = wb.launch(
            script, ["--steps", "60", "--step-seconds", "0.05"], cpu=True, store=disk / "r"
        )
        begun(run, 3)
        with (disk / "filler").open("wb", buffering=0) as filler, contextlib.suppress(OSError):
            while True:
                filler.write(b"x" * 4096)
        assert run.wait(90) == "succeeded", run.status


def test_read_only_store_is_refused_in_one_sentence(tmp_path: Path) -> None:
    folder = tmp_path / "ro"
    folder.mkdir()
    mounted = subprocess.run(
        f"mount --bind {folder} {folder} && mount -o remount,ro,bind {folder}",
        shell=True,
        check=False,
        capture_output=True,
    )
    if mounted.returncode:
        pytest.skip("a read-only bind mount needs root")
    try:
        with pytest.raises(wb.StoreError, match=r"cannot be written.*Read-only.*--store"):
            wb.launch(SCRIPTS / "no_steps.py", cpu=True, store=folder)
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_malformed_metric_lines_are_counted_and_skipped(start: Start) -> None:
    run = begun(start("raw_ddp.py", ("--steps", "150", "--step-seconds", "0.02")), 5)
    with (run.directory / "metrics" / "rank-0.jsonl").open("ab") as file:
        file.write(b'{"step":\n\x00\x00\n[1]\n"x"\n{"step":"7"}\n')
    assert run.wait(90) == "succeeded"
    assert run.view()["lines_skipped"] == 5
    assert len(run.metrics()) == 150


def test_a_strangers_pid_in_the_state_is_never_signalled(start: Start) -> None:
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    run = start("no_steps.py", strategy="single")
    run.wait(60)
    until(lambda: not processes.is_alive(state(run)["supervisor"]), 20, "the supervisor's own end")
    forged = state(run) | {"phase": "running"}
    forged["launcher"] = {**processes.identify(stranger.pid), "start_ticks": 1}
    (run.directory / "state.json").write_text(json.dumps(forged))
    (run.directory / "exit.json").unlink()
    assert run.state == "interrupted"
    run.stop(now=True)
    assert stranger.poll() is None
    stranger.kill()
    stranger.wait()
