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
from tests.conftest import SCRIPTS, allowed, rank_pid, until
from tests.faults.matrix import record
from workbench.store import processes
from workbench.store.files import read_json
from workbench.store.starts import PORT_TAKEN

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
    assert time.monotonic() - began < allowed(15)
    assert left(run) == []
    assert not any(processes.is_alive(process) for process in bare)
    assert run.outcome == "stopped"
    record(
        39,
        "SIGTERM ignored, grandchildren in sessions of their own, one without the marker: none left within 15 s",
    )


@pytest.mark.full
def test_stop_of_a_stopped_rank(start: Start) -> None:
    """A process in state T never sees SIGTERM; torchrun alone would wait 30 s for it."""
    run = begun(start("raw_ddp.py", LONG))
    os.kill(rank_pid(run.directory, 1), signal.SIGSTOP)
    began = time.monotonic()
    assert run.stop(now=True)["processes_left"] == 0
    assert time.monotonic() - began < allowed(15)


@pytest.mark.full
def test_a_port_taken_after_the_preflight_is_retried_on_another(store: Path) -> None:
    with socket.socket() as free:
        free.bind(("", 0))
        port = free.getsockname()[1]
    request = wb.request(SCRIPTS / "raw_ddp.py", ["--steps", "5"], port=port, cpu=True, store=store)
    with socket.socket() as bound:  # bound but not listening: looks free, cannot be had
        bound.bind(("", port))
        run = wb.start(request)
        assert run.wait(120) == "succeeded", run.logs()
    attempts = run.summary()["attempts"]
    starts = [attempt for attempt in attempts if attempt["event"] == "start"]
    assert [start.get("why") for start in starts] == [None, PORT_TAKEN]
    assert run.summary()["restarts"] == 0  # nothing failed
    assert len(run.metrics()) == 5
    record(11, "the next start, on a free port, succeeds; said in words")


@pytest.mark.full
def test_a_stop_that_comes_too_late_is_no_stop(start: Start) -> None:
    run = begun(start("raw_ddp.py", ("--steps", "60", "--step-seconds", "0.02")), 5)
    (run.directory / "control" / "stop-at").write_text("100000")  # further than the script goes
    (run.directory / "control" / "stop").touch()
    assert run.wait(240) in {"succeeded", "stopped"}
    ended_whole = len(run.metrics(0)) == 60
    assert (run.outcome == "succeeded") == ended_whole


@pytest.mark.full
def test_two_runs_at_once_do_not_clash(start: Start) -> None:
    both = [start("raw_ddp.py", ("--steps", "10"), name="twin") for _ in range(2)]
    assert both[0].id != both[1].id
    assert [run.wait(180) for run in both] == ["succeeded", "succeeded"]
    record(11, "two runs at once do not clash")


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


@pytest.mark.full
def test_full_disk_does_not_end_training(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    with small_disk(disk, "2m"):
        run = wb.launch(
            SCRIPTS / "raw_ddp.py",
            ["--steps", "500", "--step-seconds", "0.02"],
            cpu=True,
            store=disk / "runs",
            warm=True,
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
        assert run.wait(240) == "succeeded", run.status
        assert [row["step"] for row in run.metrics(1)] == list(range(1, 501))
        assert run.view()["lines_skipped"] == 0
    record(
        12,
        "2 MB tmpfs full for 3 s: both ranks train on, all 500 steps are in the record, none torn",
    )


@pytest.mark.full
def test_full_disk_at_the_end_still_tells_how_it_ended(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    with small_disk(disk, "2m"):
        script = tmp_path / "short.py"
        shutil.copy(SCRIPTS / "raw_ddp.py", script)
        run = wb.launch(
            script,
            ["--steps", "60", "--step-seconds", "0.05"],
            cpu=True,
            store=disk / "r",
            warm=True,
        )
        begun(run, 3)
        with (disk / "filler").open("wb", buffering=0) as filler, contextlib.suppress(OSError):
            while True:
                filler.write(b"x" * 4096)
        assert run.wait(240) == "succeeded", run.status
    record(12, "full at the end: exit.json is written all the same")


def test_no_free_inode_at_the_end_still_tells_how_it_ended(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    with small_disk(disk, "64m,nr_inodes=400"):
        script = tmp_path / "short.py"
        shutil.copy(SCRIPTS / "raw_ddp.py", script)
        run = wb.launch(
            script,
            ["--steps", "60", "--step-seconds", "0.05"],
            cpu=True,
            store=disk / "r",
            warm=True,
        )
        begun(run, 3)
        with contextlib.suppress(OSError):
            for number in range(1000):
                (disk / f"filler-{number}").touch()
        assert run.wait(240) == "succeeded", run.status
        assert os.statvfs(disk).f_ffree <= 2  # the folders that torch's launcher gave back
    record(12, "no free inode at the end: exit.json is written all the same")


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
    record(31, "refused in one sentence with path and --store")


def test_malformed_metric_lines_are_counted_and_skipped(start: Start) -> None:
    run = begun(start("raw_ddp.py", ("--steps", "150", "--step-seconds", "0.02")), 5)
    with (run.directory / "metrics" / "rank-0.jsonl").open("ab") as file:
        file.write(b'{"step":\n\x00\x00\n[1]\n"x"\n{"step":"7"}\n')
    assert run.wait(240) == "succeeded"
    assert run.view()["lines_skipped"] == 5
    assert len(run.metrics()) == 150
    record(29, "5 bad lines counted, all 150 steps read")


def test_a_strangers_pid_in_the_state_is_never_signalled(start: Start) -> None:
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    run = start("no_steps.py", strategy="single")
    run.wait(240)
    ends = (state(run)["supervisor"], state(run)["watcher"])
    until(lambda: not any(map(processes.is_alive, ends)), 20, "the end of supervisor and watcher")
    forged = state(run) | {"phase": "running"}
    forged["launcher"] = {**processes.identify(stranger.pid), "start_ticks": 1}
    (run.directory / "state.json").write_text(json.dumps(forged))
    (run.directory / "exit.json").unlink()
    assert run.state == "interrupted"
    run.stop(now=True)
    assert stranger.poll() is None
    stranger.kill()
    stranger.wait()
    record(27, "a stranger under a recorded pid lives on")
