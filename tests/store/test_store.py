"""Names, files, readers and the listing."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import workbench as wb
from tests.cpu_budget import least_seconds, over_budget
from workbench.store import files, names, processes
from workbench.store.detached import lock_file
from workbench.store.files import CHUNK_BYTES, LineReader, read_json, read_tail, write_json_atomic
from workbench.store.layout import RunPaths

BAD_NAMES = [
    *("../../etc/x", "/abs", "a/../../b", "..", ".", "", "   ", "-rf", "~root", ".hidden", "<>"),
    *("a\0b", "a\nb", "x" * 300, "\u202eevil", "..\\..\\x"),
]
ODD_NAMES = [
    "<img src=x onerror=alert(1)>",
    "a/b",
    "naïve run 7",
    "$(touch /tmp/p)",
    "CON",
    "名前 x",
]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_names_that_could_leave_the_store_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(wb.UsageError, match="Use letters"):
        wb.Store(tmp_path / "runs").create(name)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("name", ODD_NAMES)
def test_odd_names_become_safe_directories(name: str, tmp_path: Path) -> None:
    paths = wb.Store(tmp_path).create(name)
    assert paths.directory.parent == tmp_path
    assert names.is_id(paths.directory.name)


@pytest.mark.parametrize("name", ["last", " last ", "last-", "last?"])
def test_the_word_for_the_newest_run_is_no_name(name: str, tmp_path: Path) -> None:
    with pytest.raises(wb.UsageError, match="stands for the newest run"):
        wb.Store(tmp_path).create(name)
    assert wb.Store(tmp_path).create("the last").directory.name == "the-last"


def test_a_run_of_that_name_hides_the_newest_no_longer(tmp_path: Path) -> None:
    old, newer = make_run(tmp_path, "last", 100.0), make_run(tmp_path, "newer", 200.0)
    store = wb.Store(tmp_path)
    assert store.find("last") == store.locate("last") == newer
    assert store.locate(old.directory) == old


def test_two_callers_get_two_runs(tmp_path: Path) -> None:
    store = wb.Store(tmp_path)
    assert [store.create("same").directory.name for _ in range(3)] == ["same", "same-2", "same-3"]


def make_run(root: Path, run_id: str, created: float, **extra: object) -> RunPaths:
    paths = RunPaths(root / run_id)
    paths.directory.mkdir(parents=True)
    paths.make_folders()
    write_json_atomic(paths.run, {"run": run_id, "name": run_id, "created_at": created, **extra})
    return paths


def test_find_by_id_prefix_name_and_last(tmp_path: Path) -> None:
    make_run(tmp_path, "gpt-1", 100.0, name="My run")
    make_run(tmp_path, "vit-1", 300.0)
    make_run(tmp_path, "gpt-2", 200.0)
    (tmp_path / "_assets").mkdir()
    (tmp_path / "not-a-run").mkdir()
    store = wb.Store(tmp_path)
    assert store.ids() == ["vit-1", "gpt-2", "gpt-1"]
    assert store.find("vit").directory.name == "vit-1"
    assert store.find("last").directory.name == "vit-1"
    assert store.find("My run").directory.name == "gpt-1"
    with pytest.raises(wb.UsageError, match="fits 2 runs"):
        store.find("gpt")
    with pytest.raises(wb.RunNotFoundError, match="Did you mean gpt-2"):
        store.find("gtp-2")
    with pytest.raises(wb.RunNotFoundError):
        store.find("../gpt-1")


def test_last_is_the_run_that_the_user_launched(tmp_path: Path) -> None:
    make_run(tmp_path, "study-1", 1.0, part_of="study")
    store = wb.Store(tmp_path)
    assert store.find("last").directory.name == "study-1"  # there is no other
    make_run(tmp_path, "mine", 2.0)
    make_run(tmp_path, "measure-train", 3.0, part_of="measure")
    make_run(tmp_path, "trial-1", 4.0, sweep={"name": "s", "trial": 0})
    assert store.find("last").directory.name == "mine"
    assert store.ids()[0] == "trial-1"


def test_a_path_stands_for_its_run_in_any_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(tmp_path / "runs", "gpt-1", 1.0)
    make_run(tmp_path / "others", "gpt-1", 2.0)
    other = tmp_path / "others" / "gpt-1"
    monkeypatch.chdir(tmp_path)
    for text in ("others/gpt-1", "./others/gpt-1/", str(other), other):
        assert wb.attach(text).directory == other
    assert wb.attach("gpt-1").directory == tmp_path / "runs" / "gpt-1"
    monkeypatch.chdir(other)
    assert wb.attach(".").directory == other
    (tmp_path / "link").symlink_to(other)
    with pytest.raises(wb.StoreError, match="symbolic link"):
        wb.attach(tmp_path / "link")
    with pytest.raises(wb.RunNotFoundError):
        wb.Store(tmp_path / "runs").find(str(other))  # what a page or an agent names stays inside


@pytest.mark.parametrize("below", ["", "/deeper"])
def test_a_file_is_no_store(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(wb.StoreError, match=r"must be a folder, and .*/file is a file") as told:
        wb.runs(f"{tmp_path}/file{below}")
    assert "Errno" not in str(told.value)


def test_a_tilde_of_no_user_is_a_plain_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert wb.runs("~nobody-here/x") == []
    with pytest.raises(wb.RunNotFoundError):
        wb.attach("~nobody-here/x", tmp_path)


def test_runs_are_a_list_that_prints_as_a_table(tmp_path: Path) -> None:
    assert str(wb.runs(tmp_path)) == "no runs"
    make_run(tmp_path, "first", 1e9, strategy_name="ddp", processes=2)
    listed = wb.runs(tmp_path)
    assert listed[0]["run"] == "first"
    assert json.loads(json.dumps(listed)) == listed
    head, line = str(listed).splitlines()
    assert head.split() == ["run", "state", "strategy", "ranks", "steps", "loss_last", "created"]
    assert line.split()[:5] == ["first", "interrupted", "ddp", "2", "0"]


def test_the_list_shows_the_times_by_which_it_is_sorted(tmp_path: Path) -> None:
    """A run that waited in the queue began after one that was launched later."""
    queued = make_run(tmp_path, "queued", 1.0e9)
    make_run(tmp_path, "direct", 1.1e9)
    write_json_atomic(queued.state, {"phase": "ended", "started_at": 1.2e9})
    listed = wb.runs(tmp_path)
    times = [(run["run"], run["created_at"], run["started_at"]) for run in listed]
    assert times == [("direct", 1.1e9, 1.1e9), ("queued", 1.0e9, 1.2e9)]
    shown = [line[-11:] for line in str(listed).splitlines()[1:]]
    assert shown == [time.strftime("%m-%d %H:%M", time.localtime(at)) for at in (1.1e9, 1.0e9)]


def test_an_empty_path_is_no_store() -> None:
    with pytest.raises(wb.UsageError, match=r"The store is empty\. Give the path"):
        wb.Store("")


def test_empty_store_says_how_to_begin(tmp_path: Path) -> None:
    assert wb.runs(tmp_path / "none") == []
    with pytest.raises(wb.RunNotFoundError, match="workbench launch gpt"):
        wb.attach("last", tmp_path / "none")


def test_a_broken_run_does_not_hide_the_others(tmp_path: Path) -> None:
    make_run(tmp_path, "good", 1.0)
    broken = make_run(tmp_path, "broken", 2.0)
    broken.state.write_text("{ torn")
    listed = {run["run"]: run["state"] for run in wb.runs(tmp_path)}
    assert listed == {"good": "interrupted", "broken": "interrupted"}


def test_fifty_runs_are_listed_within_a_second(tmp_path: Path) -> None:
    for number in range(50):
        make_run(tmp_path, f"run-{number}", float(number))
    assert len(wb.runs(tmp_path)) == 50
    assert not over_budget(least_seconds(lambda: wb.runs(tmp_path)), 1)


def test_atomic_write_keeps_the_old_file_on_refusal(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    write_json_atomic(path, {"a": 1})
    with pytest.raises(ValueError, match=r"not JSON compliant|Out of range"):
        write_json_atomic(path, {"a": float("nan")})
    assert read_json(path) == {"a": 1}
    assert os.listdir(tmp_path) == ["x.json"]


def test_line_reader_waits_for_the_newline_and_counts_what_it_skips(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    reader = LineReader(path)
    assert reader.read() == []
    with path.open("ab", buffering=0) as file:
        file.write(b'{"step":1}\n{"step":')
        assert reader.read() == [{"step": 1}]
        file.write(b'2}\nnot json\n[1]\n{"loss":NaN,"step":3}\n\xff\xfe\n')
        rows = reader.read()
    assert [row["step"] for row in rows] == [2, 3]
    assert reader.skipped == 3


def test_line_reader_survives_a_monstrous_line(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_bytes(b'{"step":1}\n' + b"x" * (5 * CHUNK_BYTES) + b'\n{"step":2}\n')
    reader, rows = LineReader(path), []
    for _ in range(10):
        rows += reader.read()
    assert [row["step"] for row in rows] == [1, 2]
    assert reader.skipped == 1


def test_read_tail_never_reads_the_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"first\n" * 100_000 + b"caf\xe9 last\n")
    assert read_tail(path, 30) == "first\nfirst\nfirst\ncaf\ufffd last\n"
    assert read_tail(tmp_path / "none", 30) == ""


def test_process_identity_is_more_than_a_pid() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    process = processes.identify(child.pid)
    assert process is not None
    assert processes.is_alive(process)
    assert not processes.is_alive({**process, "start_ticks": process["start_ticks"] + 1})
    assert not processes.is_alive({**process, "boot_id": "another boot"})
    assert not processes.send_signal({**process, "start_ticks": 1}, 9)
    assert child.poll() is None
    assert processes.send_signal(process, 9)
    child.wait()
    assert not processes.is_alive(process)


def test_a_run_on_another_machine_is_judged_by_its_heartbeat(tmp_path: Path) -> None:
    paths = make_run(tmp_path, "far", 1.0)
    elsewhere = {"pid": 1, "start_ticks": 1, "boot_id": "another machine"}
    state = {"phase": "running", "supervisor": elsewhere, "heartbeat": time.time()}
    paths.state.write_text(json.dumps(state))
    assert wb.Run(paths).state == "running"
    paths.state.write_text(json.dumps({**state, "heartbeat": time.time() - 60}))
    assert wb.Run(paths).outcome == "interrupted"


def test_a_run_of_another_container_lives_while_its_supervisor_holds_the_lock(
    tmp_path: Path,
) -> None:
    """Containers of one host share the boot, and see no processes of each other."""
    paths = make_run(tmp_path, "beside", 1.0)
    unseen = {"pid": 1 << 22, "start_ticks": 1, "boot_id": processes.boot_id()}
    state = {"phase": "running", "supervisor": unseen, "heartbeat": time.time()}
    paths.state.write_text(json.dumps(state))
    lock = lock_file(paths.lock)
    assert lock is not None
    assert wb.Run(paths).state == "running"
    os.close(lock)
    assert wb.Run(paths).outcome == "interrupted"
    paths.lock.unlink()
    os.mkfifo(paths.lock)
    assert wb.Run(paths).outcome == "interrupted", "a pipe in its place holds no one up"


def test_a_reserved_file_becomes_the_document_without_a_new_one(tmp_path, monkeypatch):
    reserved, target = tmp_path / "reserved", tmp_path / "exit.json"
    files.reserve(reserved, 4096)
    inode = reserved.stat().st_ino
    with monkeypatch.context() as patch:
        patch.setattr(files, "_create", pytest.fail)  # no inode is to be had
        files.write_json_reserved(reserved, target, {"outcome": "succeeded"})
    assert target.stat().st_ino == inode
    assert json.loads(target.read_text()) == {"outcome": "succeeded"}
    assert not reserved.exists()
    files.write_json_reserved(reserved, target, {"outcome": "failed"})  # gone: a new file
    assert json.loads(target.read_text()) == {"outcome": "failed"}


def test_a_reserved_file_that_is_a_link_is_not_written_through(tmp_path):
    (tmp_path / "theirs").write_text("theirs")
    (tmp_path / "reserved").symlink_to(tmp_path / "theirs")
    files.write_json_reserved(tmp_path / "reserved", tmp_path / "exit.json", {"a": 1})
    assert (tmp_path / "theirs").read_text() == "theirs"
    assert json.loads((tmp_path / "exit.json").read_text()) == {"a": 1}


def test_a_run_that_is_deleted_while_the_store_is_listed_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("gone", "stays"):
        make_run(tmp_path, name, 1.0)
    scandir = os.scandir

    @contextlib.contextmanager
    def listed(path: Path) -> Iterator[Iterator[os.DirEntry[str]]]:
        with scandir(path) as entries:
            known = list(entries)
        for entry in known:
            entry.is_dir(follow_symlinks=False)
        (tmp_path / "gone").rename(tmp_path / ".gone")
        yield iter(known)

    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", listed)
        found = wb.Store(tmp_path).folders()
    assert [name for _, name in found] == ["stays"]
