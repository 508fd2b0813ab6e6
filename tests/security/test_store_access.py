"""S14, S15, S17 and rows 27, 29, 30, 33: modes, planted links, foreign processes, torn files."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import workbench as wb
from tests.faults.matrix import record
from workbench.observe.events import MetricStream
from workbench.store import processes
from workbench.store.files import LineReader, read_json, read_tail, write_json_atomic
from workbench.store.layout import RunPaths

NOBODY = 65534
AS_ROOT = os.geteuid() == 0 and shutil.which("setpriv") is not None
as_root = pytest.mark.skipif(not AS_ROOT, reason="needs root and setpriv to become somebody else")
SECRET = "the private key of somebody else"


def make_run(root: Path, run_id: str, **extra: object) -> RunPaths:
    paths = RunPaths(root / run_id)
    paths.directory.mkdir(parents=True, mode=0o700)
    paths.make_folders()
    write_json_atomic(
        paths.run, {"run": run_id, "name": run_id, "created_at": 1.0, "processes": 1, **extra}
    )
    return paths


@pytest.fixture
def key(tmp_path: Path) -> Path:
    """A file that no face of a run may show."""
    path = tmp_path / "id_ed25519"
    path.write_text(json.dumps({"outcome": SECRET, "message": SECRET}) + "\n" + SECRET)
    path.chmod(0o600)
    return path


def as_nobody(*argv: str) -> subprocess.CompletedProcess[str]:
    command = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", *argv]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")


def test_what_we_make_is_ours_alone(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        paths = wb.Store(tmp_path / "runs").create("mine")
        write_json_atomic(paths.run, {"a": 1})
    finally:
        os.umask(before)
    assert paths.directory.stat().st_mode & 0o777 == 0o700
    assert paths.run.stat().st_mode & 0o777 == 0o600


@as_root
def test_another_user_cannot_read_a_run(tmp_path: Path) -> None:
    for folder in (tmp_path, *tmp_path.parents[:3]):
        folder.chmod(0o755)
    paths = wb.Store(tmp_path / "runs").create("mine")
    paths.rank_log(0).write_text(SECRET)
    paths.rank_log(0).chmod(0o644)  # as the hook of a script with a friendly umask makes it
    open_to_all = tmp_path / "runs" / "note"
    open_to_all.write_text("hello")
    assert as_nobody("cat", str(open_to_all)).stdout == "hello"
    assert SECRET not in as_nobody("cat", str(paths.rank_log(0))).stdout
    assert as_nobody("ls", str(paths.directory)).returncode != 0


@as_root
def test_a_store_works_for_an_ordinary_user(tmp_path: Path) -> None:
    python = shutil.which("python3", path="/usr/bin:/usr/local/bin")
    version = as_nobody(str(python), "-c", "import sys; print(sys.version_info >= (3, 10))")
    if version.stdout.strip() != "True":
        pytest.skip("no system Python 3.10 that an ordinary user may start")
    for folder in (tmp_path, *tmp_path.parents[:3]):
        folder.chmod(0o755)
    home = tmp_path / "home"
    home.mkdir()
    os.chown(home, NOBODY, NOBODY)
    code = (
        f"import sys; sys.path.insert(0, {str(Path(wb.__file__).parents[1])!r})\n"
        "from workbench.store.runs import Store\n"
        "from workbench.store.files import write_json_atomic\n"
        "from workbench.store.status import read_status\n"
        f"store = Store({str(home / 'runs')!r})\n"
        "paths = store.create('theirs')\n"
        "write_json_atomic(paths.run, {'created_at': 1.0})\n"
        "print(store.ids(), read_status(paths).state)\n"
    )
    done = as_nobody(str(python), "-B", "-c", code)
    assert done.stdout == "['theirs'] interrupted\n", done.stderr


@as_root
def test_a_run_of_which_nothing_can_be_read_is_listed_with_the_reason(tmp_path: Path) -> None:
    """Row 30, as someone who is not root: modes do not bind root."""
    python = shutil.which("python3", path="/usr/bin:/usr/local/bin")
    for folder in (tmp_path, *tmp_path.parents[:3]):
        folder.chmod(0o755)
    root = tmp_path / "runs"
    for number in range(5):
        make_run(root, f"good-{number}")
        for path in [root / f"good-{number}", *(root / f"good-{number}").rglob("*")]:
            path.chmod(0o755)
    make_run(root, "closed")
    make_run(root, "sealed").directory.chmod(0o755)
    code = (
        f"import sys; sys.path.insert(0, {str(Path(wb.__file__).parents[1])!r})\n"
        "from workbench.store.runs import Store\n"
        "from workbench.store.status import read_status\n"
        f"store = Store({str(root)!r})\n"
        "for run in store.ids():\n"
        "    status = read_status(store.find(run))\n"
        "    print(run, status.state, status.message)\n"
    )
    done = as_nobody(str(python), "-B", "-c", code)
    if "No module" in done.stderr or not done.stdout:
        pytest.skip(f"no system Python for an ordinary user: {done.stderr[-200:]}")
    lines = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert len(lines) == 7
    assert all(lines[f"good-{number}"].startswith("interrupted") for number in range(5))
    assert lines["closed"].startswith("unreadable unreadable: ")
    assert lines["sealed"] == "unreadable unreadable: run.json: permission denied"


def test_a_file_that_is_no_plain_file_is_unreadable_and_holds_nobody_up(tmp_path: Path) -> None:
    for number in range(3):
        make_run(tmp_path, f"good-{number}")
    for name, make in {"pipe": os.mkfifo, "folder": os.mkdir}.items():
        paths = make_run(tmp_path, name)
        paths.run.unlink()
        make(paths.run)
    make_run(tmp_path, "torn").run.write_text('{"run": "torn", ')
    make_run(tmp_path, "huge").run.write_bytes(b'{"x":"' + b"x" * (9 << 20) + b'"}')
    listed = {row["run"]: row for row in wb.runs(tmp_path)}
    assert len(listed) == 7
    assert {row["state"] for name, row in listed.items() if "good" in name} == {"interrupted"}
    reasons = {name: row["message"] for name, row in listed.items() if "good" not in name}
    assert reasons == {
        "pipe": "unreadable: run.json: not a plain file",
        "folder": "unreadable: run.json: not a plain file",
        "torn": "unreadable: run.json: not JSON",
        "huge": "unreadable: run.json: larger than 8388608 bytes",
    }
    record(
        30, "links, pipes, folders, files of others: unreadable with the reason, the others list"
    )


@contextlib.contextmanager
def immutable(path: Path) -> Iterator[None]:
    done = subprocess.run(["chattr", "+i", str(path)], capture_output=True, check=False)
    if done.returncode:
        pytest.skip("chattr +i is not possible here")
    try:
        yield
    finally:
        subprocess.run(["chattr", "-i", str(path)], check=True)


def test_a_run_that_cannot_be_written_can_be_read(tmp_path: Path) -> None:
    paths = make_run(tmp_path, "frozen")
    with immutable(paths.run), immutable(paths.control):
        assert wb.attach("frozen", tmp_path).outcome == "interrupted"
        with pytest.raises(OSError, match="not permitted"):
            write_json_atomic(paths.control / "x.json", {"a": 1})
        assert not list(paths.control.iterdir())


@pytest.mark.parametrize("part", ["run", "state", "exit", "view"])
def test_a_planted_link_shows_nothing(part: str, tmp_path: Path, key: Path) -> None:
    paths = make_run(tmp_path / "runs", "theirs")
    path = getattr(paths, part)
    path.unlink(missing_ok=True)
    path.symlink_to(key)
    assert read_json(path) is None
    (row,) = wb.runs(tmp_path / "runs")
    assert SECRET not in json.dumps(row)
    if part != "view":
        assert "symbolic link" in row["message"]


@pytest.mark.parametrize("folder", [False, True])
def test_a_log_that_is_a_link_shows_nothing(*, folder: bool, tmp_path: Path, key: Path) -> None:
    paths = make_run(tmp_path / "runs", "theirs")
    if folder:
        paths.logs.rmdir()
        paths.logs.symlink_to(tmp_path / "elsewhere", target_is_directory=True)
        (tmp_path / "elsewhere").mkdir()
        shutil.copy(key, tmp_path / "elsewhere" / "rank-0.log")
        shutil.copy(key, tmp_path / "elsewhere" / "rank-0.jsonl")
    else:
        paths.rank_log(0).symlink_to(key)
    assert read_tail(paths.rank_log(0), 1000) == ""
    run = wb.Run(paths)
    assert SECRET not in run.logs(0, tail=50)
    assert LineReader(paths.logs / "rank-0.jsonl").read() == []


@as_root
def test_a_second_name_of_somebody_elses_file_shows_nothing(tmp_path: Path, key: Path) -> None:
    paths = make_run(tmp_path / "runs", "theirs")
    os.link(key, paths.rank_log(0))
    assert SECRET in read_tail(paths.rank_log(0), 1000)  # our own, as a backup by links has it
    os.chown(paths.logs, NOBODY, NOBODY)
    assert read_tail(paths.rank_log(0), 1000) == ""


def test_a_run_that_is_a_link_is_refused(tmp_path: Path) -> None:
    make_run(tmp_path / "elsewhere", "theirs")
    root = tmp_path / "runs"
    root.mkdir()
    (root / "theirs").symlink_to(tmp_path / "elsewhere" / "theirs", target_is_directory=True)
    assert wb.runs(root) == []
    with pytest.raises(wb.StoreError, match="symbolic link"):
        wb.attach("theirs", root)


def test_a_link_where_we_write_is_replaced_not_followed(tmp_path: Path, key: Path) -> None:
    before = key.read_text()
    paths = make_run(tmp_path / "runs", "mine")
    paths.state.symlink_to(key)
    temporary = paths.directory / f".state.json.{os.getpid()}.tmp"
    temporary.symlink_to(key)
    write_json_atomic(paths.state, {"phase": "running"})
    assert key.read_text() == before
    assert not paths.state.is_symlink()
    assert read_json(paths.state) == {"phase": "running"}
    assert not temporary.exists()


@pytest.fixture
def stranger() -> Iterator[processes.ProcessDoc]:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)"])
    process = processes.identify(child.pid)
    assert process is not None
    yield process
    child.kill()
    child.wait()


@pytest.mark.parametrize("change", [{"start_ticks": 1}, {"boot_id": "before the reboot"}])
def test_a_process_number_that_came_round_again_is_a_stranger(
    change: dict[str, object], tmp_path: Path, stranger: processes.ProcessDoc
) -> None:
    """Row 27: the run's processes are gone, and their numbers belong to someone else."""
    paths = make_run(tmp_path, "old", marker="0" * 32)
    document = {**stranger, **change}
    state = {"phase": "running", "supervisor": document, "launcher": document, "heartbeat": 1.0}
    write_json_atomic(paths.state, {**state, "ranks": {"0": document}})
    run = wb.attach("old", tmp_path)
    assert (run.state, run.outcome) == ("interrupted", "interrupted")
    assert run.stop(now=True) == {"run": "old", "outcome": "interrupted", "processes_left": 0}
    assert not processes.send_signal(document, signal.SIGKILL)
    assert processes.is_alive(stranger)


def test_a_poisoned_state_cannot_point_at_a_stranger(
    tmp_path: Path, stranger: processes.ProcessDoc
) -> None:
    """S17: right number, right start time, right boot, but not of this run."""
    marker = "f" * 32
    assert not processes.is_marked(stranger, marker)
    assert processes.find_marked(marker) == []
    assert processes.find_marked("") == []
    marked = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"],
        env={**os.environ, processes.MARKER: marker},
    )
    try:
        ours = processes.identify(marked.pid)
        deadline = time.monotonic() + 120
        while not processes.is_marked(ours, marker) and time.monotonic() < deadline:
            time.sleep(0.02)  # between fork and exec it still has our environment
        assert processes.is_marked(ours, marker)
        assert not processes.is_marked(ours, marker[1:])
        assert [process["pid"] for process in processes.find_marked(marker)] == [marked.pid]
    finally:
        marked.kill()
        marked.wait()


@pytest.mark.parametrize("pid", [0, -1, 10**30, "1", "self", "../1", None, 1.5, True])
def test_what_is_no_process_number_is_nobody(pid: object, tmp_path: Path) -> None:
    me = processes.identify(os.getpid())
    paths = make_run(tmp_path, "old")
    poisoned = {**me, "pid": pid}
    paths.state.write_text(
        json.dumps({"phase": "running", "supervisor": poisoned, "ranks": {"0": poisoned}})
    )
    assert wb.attach("old", tmp_path).outcome == "interrupted"


def test_a_broken_metric_file_loses_only_its_broken_lines(tmp_path: Path) -> None:
    """Row 29, through the reader that the supervisor and every face use."""
    paths = make_run(tmp_path, "run")
    good = [f'{{"step":{step},"time":{step}.5,"loss":1.5}}'.encode() for step in range(1, 6)]
    broken = [
        b'{"step":',
        b"\0" * 4096,
        b'{"step":"3","time":1}',
        b'{"step":true,"time":1}',
        b"[" * 100_000,
        b'{"step":7,"time":' + b"9" * 400 + b"}",
        b'{"step":' + b"9" * 5000 + b"}",
        b"\xff\xfe\x00",
        b"x" * (10 << 20),
    ]
    text = b"\n".join([*good[:3], *broken, good[3], good[3], good[4]]) + b'\n{"step":6,"ti'
    paths.rank_metrics(0).write_bytes(text)
    stream = MetricStream(paths, 1)
    rows = stream.read(final=True)
    assert [row.step for row in rows] == [1, 2, 3, 4, 5]
    assert stream.lines_skipped == len(broken)
    with paths.rank_metrics(0).open("ab") as file:
        file.write(b'me":6.5,"loss":NaN}\n{"step":7,"time":7,"loss":Infinity}\n')
    rows = stream.read(final=True)
    assert [(row.step, row.finite) for row in rows] == [(6, False), (7, False)]


def test_logs_that_are_no_text_are_read(tmp_path: Path) -> None:
    """Row 33, files without newlines, with bars, backspaces, other encodings, one line of 1 MB."""
    paths = make_run(tmp_path, "run")
    bars = b"".join(b"\r%3d%%|#####" % percent for percent in range(101))
    paths.rank_log(0).write_bytes(
        b"caf\xe9 \xff\xfe\n" + bars + b"\n12/12 [====]\x08\x08\x08done\n" + b"y" * (1 << 20)
    )
    run = wb.Run(paths)
    lines = run.logs(0, tail=20_000).split("\n")
    assert lines[0] == "caf\ufffd \ufffd\ufffd"
    assert lines[1] == "100%|#####"
    assert max(map(len, lines)) <= 1000
    assert "y" * 1000 in run.logs(0)


def test_a_whole_log_that_is_a_link_shows_nothing(tmp_path: Path, key: Path) -> None:
    paths = make_run(tmp_path / "runs", "theirs")
    paths.rank_log(0).symlink_to(key)
    assert SECRET not in wb.Run(paths).logs(0)
