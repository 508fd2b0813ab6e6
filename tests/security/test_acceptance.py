"""A run from elsewhere is not started by a resume: its user reads what it starts, then adopts it."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import workbench as wb
from workbench.cli.entry import app
from workbench.errors import ForeignRunError, StoreError
from workbench.launching.prepare.acceptance import check_accepted, started_commands
from workbench.launching.prepare.placement import Placement
from workbench.launching.resume import resume
from workbench.launching.start.start import prepare
from workbench.recover import Recovery
from workbench.store import ownership
from workbench.store.files import write_json_atomic
from workbench.store.layout import RunPaths
from workbench.store.record import read_record
from workbench.store.run_record import RunRecord

ROOT = Path(__file__).resolve().parents[2]
HOOK = ("curl", "https://planted.example/x")


@pytest.fixture(autouse=True)
def key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "training-workbench" / "record-key"


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The orders that a resume would have given a supervisor."""
    orders = list[dict[str, Any]]()
    monkeypatch.setattr(resume, "spawn_supervisor", lambda _paths, order: orders.append(order))
    monkeypatch.setattr(resume, "has_continued", lambda *_: True)
    return orders


def ended(root: Path, **options: Any) -> RunPaths:
    """A run of ours that failed before its first checkpoint."""
    request = wb.request("gpt", cpu=True, processes=1, store=root, **options)
    paths = prepare(request)[0]
    write_json_atomic(paths.exit, {"outcome": "failed", "exit_code": 1, "message": "it failed"})
    return paths


def downloaded(root: Path, key: Path) -> RunPaths:
    """One that another user's workbench wrote, with a hook, unpacked in our store."""
    theirs = ended(root / "theirs", recovery=Recovery(on_end=HOOK))
    ours = root / "runs" / theirs.directory.name
    shutil.copytree(theirs.directory, ours)
    key.unlink()
    return RunPaths(ours)


def command(*words: str, root: Path) -> Any:
    return CliRunner().invoke(app, [*words, "--store", str(root / "runs")])


def test_a_resume_shows_what_it_would_start_and_what_to_type(
    tmp_path: Path, key: Path, started: list[dict[str, Any]]
) -> None:
    paths = downloaded(tmp_path, key)
    with pytest.raises(ForeignRunError) as caught:
        wb.Run(paths).resume()
    text = str(caught.value)
    assert "on_end: curl https://planted.example/x" in text
    assert "command: " in text
    assert "gpt.py" in text
    assert f"workbench adopt {paths.directory.name}" in text
    assert wb.Run(paths).why_not_resumable() == text
    assert started == []
    for layout in ({"strategy": "ddp", "processes": 2}, {"recovery": Recovery()}):
        with pytest.raises(ForeignRunError):  # in another layout it starts the script, too
            wb.Run(paths).resume(**layout)
    assert not key.exists()  # reading makes no key


def test_adopting_shows_it_and_lets_it_be_resumed(
    tmp_path: Path, key: Path, started: list[dict[str, Any]]
) -> None:
    paths = downloaded(tmp_path, key)
    name = paths.directory.name
    done = command("adopt", name, root=tmp_path)
    assert done.exit_code == 0, done.output
    assert "on_end: curl https://planted.example/x" in done.output
    assert f"workbench resume {name}" in done.output
    wb.Run(paths).resume()
    assert [order["arguments"] for order in started] == [[]]
    again = json.loads(command("adopt", name, "--json", root=tmp_path).output)
    assert again == {"run": name, "adopted": False, "accepted": [], "state": "ended"}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("command", ["sh", "-c", "planted"]),
        ("arguments", ["--planted"]),
        ("script", "/planted.py"),
        ("working_directory", "/planted"),
        ("recovery", {"on_idle": ["planted"]}),
        ("trackers", ["wandb"]),
    ],
)
def test_a_record_that_was_changed_is_ours_no_more(tmp_path: Path, field: str, value: Any) -> None:
    paths = ended(tmp_path / "runs")
    run = read_record(paths)
    check_accepted(paths, run)
    with pytest.raises(ForeignRunError):
        check_accepted(paths, replace(run, **{field: value}))


def test_a_record_of_ones_own_stays_ours(
    tmp_path: Path, started: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a resume with other options, at another port or address, with tags and a note."""
    paths = ended(tmp_path / "runs")
    wb.Run(paths).resume(recovery={"restarts": 3}, port=29_501)
    wb.Run(paths).resume()
    assert len(started) == 2
    run = read_record(paths)
    assert run.recovery["restarts"] == 3
    where = Placement(nodes=2, node_rank=0, address="10.0.0.1", port=29_502)
    check_accepted(paths, replace(run, command=where.of(run.command), address="10.0.0.1"))
    check_accepted(paths, RunRecord.of({**run.document(), "tags": ["x"], "note": "y"}))
    foreign = replace(run, vouched=[])
    monkeypatch.setenv(ownership.TRUSTED_VARIABLE, str(tmp_path / "runs"))
    check_accepted(paths, foreign)  # what lies in a trusted store counts as one's own


def test_without_a_key_that_could_be_kept_nothing_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    paths = ended(tmp_path / "runs")
    run = read_record(paths)
    assert run.vouched == []
    check_accepted(paths, run)


def test_a_pod_keeps_the_key_on_its_lasting_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The container's home is gone with it; its runs and its key are not."""
    disk, script = tmp_path / "disk", ROOT / "environments" / "keep-key.sh"
    disk.mkdir()
    for number in range(2):
        home = tmp_path / f"container-{number}"
        home.mkdir()
        monkeypatch.delenv("XDG_STATE_HOME")
        monkeypatch.setenv("HOME", str(home))
        for _ in range(2):  # a pod may be started again
            subprocess.run(["bash", script, disk], check=True)
        monkeypatch.setenv("XDG_STATE_HOME", str(home / ".local" / "state"))
        if number == 0:
            paths = ended(disk / "runs")
        check_accepted(paths, read_record(paths))
    assert (disk / ".training-workbench").stat().st_mode & 0o077 == 0
    shutil.rmtree(disk / ".training-workbench")
    with pytest.raises(ForeignRunError):
        check_accepted(paths, read_record(paths))


def test_a_key_that_others_can_read_seals_nothing(tmp_path: Path, key: Path) -> None:
    paths = ended(tmp_path / "runs")
    key.chmod(0o644)
    with pytest.raises(ForeignRunError):
        wb.Run(paths).resume()
    with pytest.raises(StoreError, match="record-key"):
        wb.Run(paths).adopt()


def test_what_a_record_says_cannot_act_on_the_terminal() -> None:
    words = ["\x1b]52;c;ZXZpbA==\x07evil\nworkbench: all is well", "x" * 10_000]
    (line,) = started_commands(RunRecord(command=words))
    assert "\x1b" not in line
    assert "\n" not in line
    assert len(line) < 2100
