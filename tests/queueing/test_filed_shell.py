"""A queued run has the environment of the shell that filed it, whoever started the queue."""

from __future__ import annotations

import json
import os
import stat
from dataclasses import asdict, replace
from pathlib import Path

import pytest

import workbench as wb
from tests.conftest import until
from workbench.launching.start import filed_shell
from workbench.launching.start.filed_shell import secrets_elsewhere, shell_document, shell_of
from workbench.queueing import Queue
from workbench.store import processes
from workbench.store.files import write_json_atomic
from workbench.store.queue_files import QueueEntry, QueueFiles

_KEY = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user whose key to vouch with is of this test alone."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path


def filed(run: str = "a") -> QueueEntry:
    """A place in the queue, as this environment files it."""
    return QueueEntry(run=run, shell=json.loads(json.dumps(shell_document(run))))


def test_what_the_dispatcher_has_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUT_DIR", "/results/project-A")
    monkeypatch.setenv("RANK", "3")  # of a launcher around the shell
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        monkeypatch.setenv(name, "1")  # its GPUs stand in the record
    entry = filed()
    monkeypatch.setenv("OUT_DIR", "/results/project-B")
    monkeypatch.setenv("ONLY_THERE", "yes")
    shell = shell_of(entry)
    assert (shell.variables["OUT_DIR"], shell.note) == ("/results/project-A", "")
    assert shell.variables["PATH"] == os.environ["PATH"]
    assert not {"ONLY_THERE", "RANK"} & set(shell.variables)
    assert not [name for name in shell.variables if name.endswith("VISIBLE_DEVICES")]


def test_secrets_are_the_dispatchers_and_it_is_told_where_they_differ(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", _KEY)
    monkeypatch.setenv("STORE_URL", f"https://me:{_KEY}@example.org/x")
    entry = filed()
    assert _KEY not in json.dumps(entry.shell)
    assert shell_of(entry).note == ""
    assert shell_of(entry).variables["WANDB_API_KEY"] == _KEY
    monkeypatch.setenv("WANDB_API_KEY", _KEY[::-1])
    monkeypatch.delenv("STORE_URL")
    shell = shell_of(entry)
    assert "so STORE_URL, WANDB_API_KEY will be as in the shell that started" in shell.note
    assert shell.variables["WANDB_API_KEY"] == _KEY[::-1]
    assert "STORE_URL" not in shell.variables


def test_an_environment_that_someone_else_wrote_starts_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entry = filed()
    entry.shell["variables"]["LD_PRELOAD"] = "/theirs.so"
    shell = shell_of(entry)
    assert "LD_PRELOAD" not in shell.variables
    assert "It is not known that you filed its environment" in shell.note
    other = replace(filed("a"), run="b")  # of another run
    assert "It is not known" in shell_of(other).note
    assert shell_of(QueueEntry(run="a")).note == ""  # filed by an earlier version


def test_who_files_is_told_which_secrets_the_queue_has_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = QueueFiles(tmp_path)
    monkeypatch.setenv("MY_TOKEN", "of this shell alone")
    assert secrets_elsewhere(queue) == ""  # who files first starts it
    with queue.locked():
        write_json_atomic(queue.dispatcher, processes.identify(os.getppid()))
    assert "MY_TOKEN" in secrets_elsewhere(queue)
    same = {name: value for name, value in os.environ.items() if name == "MY_TOKEN"}
    monkeypatch.setattr(filed_shell.processes, "variable", lambda _pid, name: same.get(name))
    assert "MY_TOKEN" not in secrets_elsewhere(queue)


def test_the_place_of_a_run_is_read_back_and_read_by_no_one_else(tmp_path: Path) -> None:
    queue, entry = QueueFiles(tmp_path), filed()
    with queue.locked():
        queue.write(queue.waits("a"), entry)
    assert [asdict(one) for one in queue.waiting()] == [asdict(entry)]
    assert stat.S_IMODE(queue.waits("a").stat().st_mode) == 0o600
    assert str(entry.shell["variables"]) not in repr(entry)


@pytest.mark.slow
def test_runs_of_two_shells_write_each_into_its_own_folder(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import os, pathlib\n"
        "out = pathlib.Path(os.environ['OUT_DIR'])\n"
        "(out / os.environ['WORKBENCH_RUN_DIR'].rpartition('/')[2]).touch()\n"
    )
    queue = Queue(store)
    queue.set_slots(1)
    queue.pause()
    runs = list[wb.Run]()
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        monkeypatch.setenv("OUT_DIR", str(tmp_path / name))
        runs.append(wb.launch(script, store=store, name=name, processes=1, cpu=True, queue=True))
    monkeypatch.setenv("OUT_DIR", str(tmp_path))
    queue.start()
    for run in runs:
        run.wait(120)
    assert [path.name for name in ("a", "b") for path in (tmp_path / name).iterdir()] == ["a", "b"]
    until(lambda: not QueueFiles(store).is_served, what="it ends by itself")
    assert not [text for run in runs for text in run.document["warnings"] if "secret" in text]
    assert "OUT_DIR" not in json.dumps([run.document for run in runs])
