"""However long a run is: who acts on it or shows it reads a bounded part at a time."""

from __future__ import annotations

import json
import math
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import workbench as wb
from tests.conftest import until
from workbench.cli.entry import app
from workbench.diagnose import offline
from workbench.launching.capture.pulse import ENDED, Pulse
from workbench.launching.supervise import monitor
from workbench.launching.supervise.rank_processes import RankProcesses
from workbench.launching.supervise.run_state import RunState
from workbench.observe import events
from workbench.observe.rows import kept_row
from workbench.store import files, processes
from workbench.store.files import read_json, write_json_atomic
from workbench.store.layout import RunPaths
from workbench.store.processes import MARKER
from workbench.store.record import read_record

STEPS, RANKS = 600, 3


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunPaths:
    """A run of many chunks."""
    monkeypatch.setattr(files, "CHUNK_BYTES", 2000)
    found = wb.Store(tmp_path).create("long")
    write_json_atomic(
        found.run,
        {
            "run": "long",
            "name": "long",
            "marker": "none",
            "created_at": 1.0,
            "processes": RANKS,
            "device": "cpu",
            "capture": True,
            "cluster": {},
            "strategy_name": "ddp",
        },
    )
    for rank in range(RANKS):
        rows = (row(step, rank) for step in range(1, STEPS + 1))
        found.rank_metrics(rank).write_text("".join(json.dumps(one) + "\n" for one in rows))
    return found


def row(step: int, rank: int) -> dict[str, Any]:
    return {"step": step, "time": step + rank / 10, "loss": 1.0 + rank, "step_seconds": 0.5}


@pytest.fixture
def most_held(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many steps were in memory at once, each time that any became complete."""
    seen = list[int]()
    real = events.MetricStream.read

    def read(self: events.MetricStream, **how: bool) -> list[events.StepRow]:
        rows = real(self, **how)
        seen.append(len(rows) + len(self._pending))
        return rows

    monkeypatch.setattr(events.MetricStream, "read", read)
    return seen


def test_metrics_stream_and_give_what_a_list_gives(paths: RunPaths, most_held: list[int]) -> None:
    rows = list(events.iterate_metrics(paths, RANKS))
    assert [one["step"] for one in rows] == list(range(1, STEPS + 1))
    assert {one["loss"] for one in rows} == {2.0}
    assert max(most_held) < STEPS / 4


@pytest.mark.parametrize("gone", ["missing", "stopped early"])
def test_a_rank_that_ended_holds_nobody_up(
    gone: str, paths: RunPaths, most_held: list[int]
) -> None:
    path = paths.rank_metrics(1)
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:50]))
    if gone == "missing":
        path.unlink()
    rows = list(events.iterate_metrics(paths, RANKS))
    assert [one["step"] for one in rows] == list(range(1, STEPS + 1))
    assert max(most_held) < STEPS / 4


def test_json_is_printed_row_by_row_as_before(paths: RunPaths, tmp_path: Path) -> None:
    words = ["metrics", "long", "--store", str(tmp_path)]
    printed = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
    assert printed == wb.Run(paths).metrics()
    first = paths.rank_metrics(0)
    first.write_text(json.dumps({**row(1, 0), "loss": math.nan}) + "\n")
    (one,) = json.loads(CliRunner().invoke(app, [*words, "--json", "--rank", "0"]).stdout)
    assert one["loss"] is None
    first.write_text("")
    assert CliRunner().invoke(app, [*words, "--json", "--rank", "0"]).stdout == "[]\n"


@pytest.mark.parametrize("rank", [None, 1])
@pytest.mark.parametrize("tail", [1, 7, 100, 2 * STEPS])
def test_the_last_steps_are_read_from_the_ends_of_the_files(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch, rank: int | None, tail: int
) -> None:
    """A run of a million steps on eight ranks took a minute of CPU for its last three."""
    lines = paths.rank_metrics(1).read_text().splitlines(keepends=True)
    paths.rank_metrics(1).write_text("".join(lines[:-4]))  # it lags behind
    rows = list(events.iterate_metrics(paths, RANKS, rank))
    monkeypatch.setattr(events, "_BLOCK_BYTES", 500)
    read, real = list[int](), events.read_tail
    monkeypatch.setattr(
        events, "read_tail", lambda path, most: read.append(most) or real(path, most)
    )
    assert list(events.iterate_metrics(paths, RANKS, rank, tail)) == rows[-tail:]
    longest = max(map(len, lines))
    assert max(read) <= max(500, 2 * tail * longest)


def test_the_last_steps_of_a_run_that_did_some_again_are_those_of_its_last_pass(
    paths: RunPaths,
) -> None:
    again = {**row(590, 0), "rewound_from": STEPS, "loss": 9.0}
    for rank in range(RANKS):
        with paths.rank_metrics(rank).open("a") as file:
            file.write(json.dumps({**again, "time": again["time"] + 99}) + "\n")
        paths.rank_rewinds(rank).write_text(json.dumps(again) + "\n")
    rows = list(events.iterate_metrics(paths, RANKS))
    assert [one["step"] for one in rows[-2:]] == [589, 590]
    assert list(events.iterate_metrics(paths, RANKS, None, 2)) == rows[-2:]


def test_diagnosing_holds_a_bounded_part(paths: RunPaths, most_held: list[int]) -> None:
    offline.diagnose_offline(paths)
    assert max(most_held) < STEPS / 4


def test_who_takes_over_a_long_run_knows_its_step_before_it_has_read_it(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitor, "_CATCH_UP_SECONDS", 0.0)
    state = RunState.of(paths, read_record(paths, ()))
    watch = monitor.RunMonitor(state, RankProcesses(state), begins=False)
    watch.catch_up()
    builder = watch._builder
    assert not builder.stream.at_end
    assert builder.steps < STEPS / 2
    assert watch.steps == STEPS
    assert watch.step_seconds == 0.5
    for _ in _until_read(watch):
        assert watch.steps == STEPS
    assert builder.steps == STEPS


def test_who_takes_over_counts_the_whole_attempt_and_the_last_pulses(paths: RunPaths) -> None:
    """Also a rank's last steps whose lines were never written: it crashed, or the disk was full."""
    pulse = Pulse(str(paths.rank_pulse(0)))
    pulse.beat(ENDED, STEPS + 3)
    here = processes.identify(os.getpid())
    write_json_atomic(paths.rank_start(0), {"process": here})
    begun = {"attempt": 1, "event": "start", "time": time.time() - 300, "first_step": 0}
    paths.attempts.write_text(json.dumps(begun) + "\n")
    state = RunState.of(paths, read_record(paths, ()))
    ranks = RankProcesses(state)
    ranks.find()
    watch = monitor.RunMonitor(state, ranks, begins=False)
    watch.judge(0)
    assert watch.steps == STEPS + 3
    watch.write_view()
    view = read_json(paths.view) or {}
    assert view["steps"] == STEPS + 3
    assert view["elapsed_seconds"] == pytest.approx(300, abs=60)


def _until_read(watch: monitor.RunMonitor) -> Iterator[None]:
    while not watch._builder.stream.at_end:
        watch.read()
        yield


# What the commands may read of a long run.

MARK = "10a6" * 8
BLOCK = 2000  # metric lines, written again and again
QUICK = {
    "runs": ["runs", "--json"],
    "show": ["show", "long", "--json"],
    "attach": ["attach", "long"],
    "checkpoints": ["checkpoints", "long"],
    "logs": ["logs", "long", "--tail", "5"],
    "tag": ["tag", "long", "x"],
    "archive": ["archive", "long"],
    "stop": ["stop", "long", "--json"],
    "stop-now": ["stop", "long", "--now", "--json"],
    "export": ["export", "long", "--to", "slurm", "--json"],
    "delete": ["delete", "long", "--yes"],
}
OF_THE_LIVING = ("runs", "show", "checkpoints", "logs", "tag", "stop-now")


def bytes_read() -> int:
    """By this thread, from its beginning; without what listing the host's processes costs."""
    try:
        told = Path("/proc/thread-self/io").read_text()
    except OSError as error:
        pytest.skip(f"this kernel does not tell how much a thread has read: {error}")
    return int(told.split("rchar: ")[1].split()[0])


@pytest.fixture
def read_of_proc(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of what was read to find the run's processes: the more, the more the host runs."""
    sizes = list[int]()
    real = processes._read

    def read(path: str, size: int) -> bytes:
        sizes.append(len(data := real(path, size)))
        return data

    monkeypatch.setattr(processes, "_read", read)
    return sizes


@pytest.fixture
def rank() -> Iterator[subprocess.Popen[bytes]]:
    """A process that bears the mark of the run."""
    process = subprocess.Popen(["sleep", "600"], env={**os.environ, MARKER: MARK})
    until(lambda: processes.is_marked(processes.identify(process.pid), MARK), 20, "the process")
    yield process
    process.kill()
    process.wait()


def long_run(root: Path, blocks: int, launcher: processes.ProcessDoc | None) -> RunPaths:
    """A run of which no one kept a view or findings; `launcher`: it trains on unwatched."""
    paths = wb.Store(root).create("long")
    write_json_atomic(
        paths.run,
        {
            "run": "long",
            "name": "long",
            "marker": MARK,
            "created_at": 1.0,
            "processes": RANKS,
            "device": "cpu",
            "capture": True,
            "strategy_name": "ddp",
            "strategy": {"name": "ddp", "dp_replicate": RANKS},
            "script": "gpt.py",
            "recipe": "gpt",
            "arguments": [],
            "command": ["true"],
            "environment": {},
            "working_directory": str(root),
        },
    )
    lines = "".join(json.dumps(row(step, 0)) + "\n" for step in range(1, BLOCK + 1)).encode()
    for number in range(RANKS):
        for path in (paths.rank_metrics(number), paths.rank_log(number)):
            path.write_bytes(lines * blocks)
    paths.system.write_bytes(lines * blocks)
    gone = {"pid": 1, "start_ticks": 0, "boot_id": processes.boot_id()}
    state = {"phase": "running", "supervisor": gone, "launcher": launcher, "heartbeat": time.time()}
    write_json_atomic(paths.state, {**state, "ranks": {}, "attempt": 1})
    if launcher is None:
        write_json_atomic(paths.exit, {"outcome": "failed", "message": "", "ended_at": 2.0})
    return paths


def reading(root: Path, words: list[str], read_of_proc: list[int]) -> int:
    """What a command reads, in bytes."""
    read_of_proc.clear()
    before = bytes_read()
    done = CliRunner().invoke(app, [*words, "--store", str(root)])
    total = bytes_read() - before - sum(read_of_proc)
    assert done.exit_code == 0, (done.output, done.exception)
    return total


@pytest.mark.parametrize("command", QUICK)
def test_a_command_reads_of_an_ended_run_no_more_the_longer_it_was(
    command: str, tmp_path: Path, read_of_proc: list[int]
) -> None:
    """The first, short one pays for the modules that the command imports."""
    long_run(tmp_path / "short", 1, None)
    long = long_run(tmp_path / "long", 200, None)
    size = events.metric_bytes(long, RANKS)
    assert size > 64e6
    short = reading(tmp_path / "short", QUICK[command], read_of_proc)
    assert reading(tmp_path / "long", QUICK[command], read_of_proc) - short < size / 32


@pytest.mark.parametrize("command", OF_THE_LIVING)
def test_a_command_reads_of_an_unwatched_run_no_more_the_longer_it_is(
    command: str, tmp_path: Path, read_of_proc: list[int], rank: subprocess.Popen[bytes]
) -> None:
    """And `stop --now` has acted by then."""
    launcher = processes.identify(rank.pid)
    long = long_run(tmp_path / "long", 200, launcher)
    before = reading(tmp_path / "long", ["tag", "long", "y"], read_of_proc)
    assert reading(tmp_path / "long", QUICK[command], read_of_proc) - before < 4e6
    if command == "stop-now":
        assert not processes.is_alive(launcher)
        assert (read_json(long.exit) or {})["outcome"] == "stopped"
        assert (kept_row(long) or {})["outcome"] == "stopped"


def test_a_stop_is_written_down_whatever_the_record_lacks(
    tmp_path: Path, rank: subprocess.Popen[bytes]
) -> None:
    paths = long_run(tmp_path, 1, processes.identify(rank.pid))
    record = read_json(paths.run) or {}
    write_json_atomic(paths.run, {name: record[name] for name in ("run", "marker")})
    done = CliRunner().invoke(app, ["stop", "long", "--now", "--json", "--store", str(tmp_path)])
    assert json.loads(done.stdout) == {"run": "long", "outcome": "stopped", "processes_left": 0}
    told = str((read_json(paths.exit) or {})["why_not_resumable"])
    assert "it lacks script, arguments, command, environment, working_directory" in told
    for words in (["resume", "long"], ["export", "long", "--to", "slurm"]):
        done = CliRunner().invoke(app, [*words, "--store", str(tmp_path)])
        assert "it lacks" in str(done.exception)
