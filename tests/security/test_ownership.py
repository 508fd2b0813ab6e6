"""Who may act on a run: its owner alone. Others read, whoever they are and whatever it says."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

import workbench as wb
from tests.conftest import until
from tests.security.users import NOBODY, as_root, as_user, give, reachable
from workbench.cli.entry import app
from workbench.compare import deletion
from workbench.compare.profile.tracing import ask
from workbench.engines.jobs import job_from_run
from workbench.errors import ForeignRunError
from workbench.launching import run
from workbench.launching.start import supervisor_process
from workbench.launching.supervise import direct_stop
from workbench.observe.trackers import feed
from workbench.store import labels, ownership, processes
from workbench.store.files import read_json, write_json_atomic
from workbench.store.layout import RunPaths
from workbench.store.processes import MARKER

MARK = "5afe" * 8


@pytest.fixture
def sleeper() -> Iterator[processes.ProcessDoc]:
    """A process that bears the run's marker and belongs to us."""
    process = subprocess.Popen(["sleep", "600"], env={**os.environ, MARKER: MARK})
    found = processes.identify(process.pid)
    assert found is not None
    until(lambda: processes.is_marked(found, MARK), 20, "the sleeper")
    yield found
    process.kill()
    process.wait()


def unwatched(root: Path, sleeper: processes.ProcessDoc, canary: Path) -> RunPaths:
    """A run that trains on, its supervisor gone; everything in it that is started leaves a mark."""
    paths = wb.Store(root).create("theirs")
    touch = ["touch", str(canary)]
    run_document = {
        "run": "theirs",
        "name": "theirs",
        "marker": MARK,
        "created_at": 1.0,
        "processes": 1,
        "device": "cpu",
        "capture": True,
        "cluster": {},
        "strategy_name": "single",
        "strategy": {"name": "single"},
        "script": str(canary),
        "arguments": [],
        "command": touch,
        "environment": {"PYTHONPATH": str(paths.directory)},
        "working_directory": str(paths.directory),
        "recovery": {"on_end": touch, "on_idle": touch, "restarts": 3},
    }
    write_json_atomic(paths.run, run_document)
    gone = {"pid": 1, "start_ticks": 0, "boot_id": processes.boot_id()}
    write_json_atomic(
        paths.state,
        {"phase": "running", "supervisor": gone, "launcher": sleeper, "ranks": {}, "attempt": 1},
    )
    planted = paths.directory / "functools.py"
    planted.write_text(f"open({str(canary)!r}, 'w')\n")
    return paths


READERS = {
    "show": ["show", "theirs", "--json"],
    "logs": ["logs", "theirs"],
    "metrics": ["metrics", "theirs", "--json"],
    "diagnose": ["diagnose", "theirs", "--json"],
    "checkpoints": ["checkpoints", "theirs", "--json"],
    "runs": ["runs", "--json"],
    "compare": ["compare", "theirs", "other", "--json"],
}


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Every program that is started while the test lasts."""
    seen: list[list[str]] = []
    real = subprocess.Popen.__init__

    def note(self: subprocess.Popen[bytes], args: list[str], *rest: object, **more: object) -> None:
        seen.append([str(word) for word in args])
        real(self, args, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(subprocess.Popen, "__init__", note)
    return seen


@pytest.mark.parametrize("reader", READERS)
def test_reading_starts_nothing_even_in_a_run_of_ones_own(
    reader: str, tmp_path: Path, sleeper: processes.ProcessDoc, started: list[list[str]]
) -> None:
    paths = unwatched(tmp_path / "runs", sleeper, tmp_path / "canary")
    other = wb.Store(tmp_path / "runs").create("other")
    write_json_atomic(other.run, {**(read_json(paths.run) or {}), "run": "other"})
    before = sorted(map(str, paths.directory.rglob("*")))
    done = CliRunner().invoke(app, [*READERS[reader], "--store", str(tmp_path / "runs")])
    assert done.exit_code == 0, (done.output, done.exception)
    with pytest.raises(wb.WorkbenchError, match="is still unsupervised"):
        wb.Run(paths).wait(0.15)
    assert started == []
    assert sorted(map(str, paths.directory.rglob("*"))) == before
    assert not (tmp_path / "canary").exists()


def refusal(act: Callable[[], object]) -> str:
    with pytest.raises(ForeignRunError) as caught:
        act()
    return str(caught.value)


ACTIONS: dict[str, Callable[[RunPaths], object]] = {
    "stop": lambda paths: wb.Run(paths).stop(timeout=5),
    "stop now": lambda paths: wb.Run(paths).stop(now=True, timeout=5),
    "request_stop": lambda paths: wb.Run(paths).request_stop(),
    "preempt": lambda paths: wb.Run(paths).preempt(),
    "adopt": lambda paths: wb.Run(paths).adopt(),
    "resume": lambda paths: wb.Run(paths).resume(),
    "rerun": lambda paths: wb.Run(paths).rerun(),
    "fork": lambda paths: wb.Run(paths).fork(at=1),
    "export": job_from_run,
    "tag": lambda paths: labels.change_labels(paths, add=["x"]),
    "delete": lambda paths: deletion.delete(wb.Store(paths.directory.parent), "theirs"),
    "profile": lambda paths: ask(wb.Run(paths)),
    "track": lambda paths: feed(paths, "tensorboard", follow=False),
}


@as_root
@pytest.mark.parametrize("action", ACTIONS)
def test_even_root_acts_on_no_run_of_another_user(
    action: str, tmp_path: Path, sleeper: processes.ProcessDoc, started: list[list[str]]
) -> None:
    paths = unwatched(tmp_path / "runs", sleeper, tmp_path / "canary")
    give(paths.directory, NOBODY)
    before = sorted(str(path) for path in paths.directory.rglob("*"))
    said = refusal(lambda: ACTIONS[action](paths))
    assert "belongs to nobody" in said
    assert "read only" in said
    assert started == []
    assert processes.is_alive(sleeper)
    assert sorted(str(path) for path in paths.directory.rglob("*")) == before


@as_root
def test_another_user_reads_our_run_and_acts_on_nothing(
    tmp_path: Path, sleeper: processes.ProcessDoc
) -> None:
    """The colleague with read access."""
    reachable(tmp_path)
    paths = unwatched(tmp_path / "runs", sleeper, tmp_path / "canary")
    give(paths.directory, 0)
    (tmp_path / "runs").chmod(0o755)

    def look() -> object:
        handle = wb.Run(paths)
        said = {name: refusal(lambda act=act: act(paths)) for name, act in ACTIONS.items()}
        return {"state": handle.state, "read_only": handle.read_only, "said": said}

    seen = as_user(NOBODY, look)
    assert isinstance(seen, dict)
    assert seen["state"] == "unsupervised"
    assert seen["read_only"] == "its directory belongs to root"
    assert all("belongs to root" in text for text in seen["said"].values())
    assert processes.is_alive(sleeper)


@as_root
def test_a_foreign_run_says_so_in_show_and_its_json(
    tmp_path: Path, sleeper: processes.ProcessDoc
) -> None:
    paths = unwatched(tmp_path / "runs", sleeper, tmp_path / "canary")
    assert wb.Run(paths).summary()["read_only"] is None
    give(paths.directory, NOBODY)
    assert wb.Run(paths).summary()["read_only"] == "its directory belongs to nobody"
    words = ["show", "theirs", "--store", str(tmp_path / "runs")]
    assert "belongs to nobody" in CliRunner().invoke(app, words).output


def link_to(target: Path) -> Callable[[Path], None]:
    def plant(path: Path) -> None:
        if path.is_dir():
            path.rmdir()
        path.unlink(missing_ok=True)
        path.symlink_to(target)

    return plant


def owned_by_nobody(path: Path) -> None:
    path.touch()
    os.chown(path, NOBODY, NOBODY)


CASES: dict[str, tuple[str, Callable[[Path], None]]] = {
    "a foreign run.json": ("run.json", owned_by_nobody),
    "a foreign request": ("control/stop", owned_by_nobody),
    "a foreign pulse": ("metrics/rank-0.pulse", owned_by_nobody),
    "a link for control": ("control", link_to(Path("/etc"))),
    "a link in config": ("config/accelerate.yaml", link_to(Path("/etc/passwd"))),
    "a foreign folder": ("nodes", lambda path: (path.mkdir(), os.chown(path, NOBODY, NOBODY))[0]),
}


@as_root
@pytest.mark.parametrize("case", CASES)
def test_one_part_of_another_user_makes_the_run_foreign(case: str, tmp_path: Path) -> None:
    paths = wb.Store(tmp_path).create("mixed")
    write_json_atomic(paths.run, {"run": "mixed"})
    assert ownership.foreign_reason(paths) is None
    part, plant = CASES[case]
    plant(paths.directory / part)
    assert part in str(ownership.foreign_reason(paths))


@pytest.mark.parametrize("part", ["", "run.json", "control", "config", "metrics"])
def test_what_others_can_write_to_is_not_acted_on(part: str, tmp_path: Path) -> None:
    paths = wb.Store(tmp_path).create("open")
    write_json_atomic(paths.run, {"run": "open"})
    place = paths.directory / part
    place.chmod(place.stat().st_mode | stat.S_IWGRP)
    closed = paths.directory.stat().st_mode & stat.S_IXOTH == 0
    if part:
        assert closed  # no one else gets that far: it does not matter
        assert ownership.foreign_reason(paths) is None
        paths.directory.chmod(0o755)
    assert "others can write to" in str(ownership.foreign_reason(paths))


def test_a_log_is_written_with_the_trainings_own_umask(tmp_path: Path) -> None:
    paths = wb.Store(tmp_path).create("shared")
    write_json_atomic(paths.run, {"run": "shared"})
    paths.rank_log(0).touch(mode=0o664)
    paths.rank_log(0).chmod(0o664)
    paths.directory.chmod(0o755)
    assert ownership.foreign_reason(paths) is None


def test_a_store_without_owners_can_be_named_as_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = wb.Store(tmp_path / "runs").create("open")
    paths.directory.chmod(0o777)
    assert ownership.foreign_reason(paths)
    monkeypatch.setenv(ownership.TRUSTED_VARIABLE, f"/nowhere:{tmp_path}")
    assert ownership.foreign_reason(paths) is None
    monkeypatch.setenv(ownership.TRUSTED_VARIABLE, str(tmp_path / "run"))
    assert ownership.foreign_reason(paths)


def test_checkpoints_may_lie_on_another_disk(tmp_path: Path) -> None:
    paths = wb.Store(tmp_path / "runs").create("moved")
    disk = tmp_path / "disk"
    disk.mkdir(mode=0o700)
    link_to(disk)(paths.checkpoints)
    assert ownership.foreign_reason(paths) is None
    paths.directory.chmod(0o755)
    disk.chmod(0o777)
    assert "others can write to checkpoints" in str(ownership.foreign_reason(paths))


def test_adoption_needs_a_process_with_the_marker(
    tmp_path: Path, sleeper: processes.ProcessDoc, started: list[list[str]]
) -> None:
    """Of a run that was downloaded nothing is at work here, whatever its state.json names."""
    paths = unwatched(tmp_path / "runs", sleeper, tmp_path / "canary")
    document = read_json(paths.run) or {}
    write_json_atomic(paths.run, {**document, "marker": "another"})
    handle = wb.Run(paths)
    assert handle.state == "interrupted"
    assert not handle.adopt()
    assert not direct_stop.stop_directly(paths, now=True)
    assert handle.stop(now=True, timeout=1)["processes_left"] == 0
    assert started == []
    assert processes.is_alive(sleeper)


def test_a_supervisor_starts_where_nothing_can_be_planted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: list[list[str]]
) -> None:
    paths = wb.Store(tmp_path / "runs").create("planted")
    write_json_atomic(paths.run, {"run": "planted", "marker": "none", "processes": 1})
    write_json_atomic(paths.exit, {"outcome": "succeeded"})
    canary = tmp_path / "canary"
    for name in ("functools", "json", "ctypes", "sitecustomize"):
        (paths.directory / f"{name}.py").write_text(f"open({str(canary)!r}, 'w')\n")
    monkeypatch.chdir(paths.directory)
    monkeypatch.setenv("PYTHONSTARTUP", str(paths.directory / "json.py"))
    process = supervisor_process.spawn_supervisor(paths, None)
    assert process.wait(240) == 0, paths.supervisor_log.read_text()
    assert not canary.exists()
    if sys.version_info >= (3, 11):
        assert started[0][:2] == [sys.executable, "-P"]


def test_attach_is_a_handle_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wb.Store(tmp_path).create("one")
    write_json_atomic(tmp_path / "one" / "run.json", {"run": "one", "created_at": 1.0})
    monkeypatch.setattr(run, "spawn_supervisor", lambda *_: pytest.fail("started a supervisor"))
    assert wb.attach("one", tmp_path).state == "interrupted"
