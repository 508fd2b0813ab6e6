"""A run is started again, and others begin at its checkpoints: each says where it came from."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import workbench as wb
from tests.conftest import until
from workbench.cli.entry import app
from workbench.errors import ForeignRunError, UsageError
from workbench.launching.prepare.acceptance import accept
from workbench.launching.resume import branch
from workbench.launching.resume import resume as resume_module
from workbench.launching.resume.attempts import Attempts
from workbench.launching.resume.branch import rerun_request
from workbench.launching.start.start import prepare
from workbench.store.files import read_json, write_json_atomic
from workbench.store.layout import RunPaths

TINY = ["--size", "1", "--hidden", "8", "--heads", "1", "--seq-len", "16", "--micro-batch", "2"]


def command(*words: str, root: Path, code: int = 0) -> Any:
    done = CliRunner().invoke(app, [*words, "--store", str(root)])
    assert done.exit_code == code, done.output
    return done.stdout


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Runs that would have been started; their directories are made."""
    names = list[str]()

    def begin(request: Any, resume: Any = None, rerun_of: str | None = None) -> RunPaths:
        paths = prepare(request, resume, rerun_of)[0]
        names.append(paths.directory.name)
        return paths

    monkeypatch.setattr(branch, "begin", begin)
    monkeypatch.setattr(resume_module, "begin", begin)
    return names


def test_a_record_from_elsewhere_is_neither_rerun_nor_forked(
    old_store: Path,
    begun: list[str],
) -> None:
    run = wb.attach("stopped", old_store)
    for start in (run.rerun, run.fork, lambda: rerun_request(RunPaths(run.directory))):
        with pytest.raises(ForeignRunError, match="workbench adopt stopped"):
            start()
    assert begun == []


def test_a_fork_names_the_steps_that_there_are(old_store: Path, begun: list[str]) -> None:
    for name in ("stopped", "failed"):
        accept(RunPaths(old_store / name))
    with pytest.raises(UsageError, match=r"no whole checkpoint of step 4. There are those of: 18"):
        wb.attach("stopped", old_store).fork(4)
    with pytest.raises(UsageError, match="workbench rerun failed"):
        wb.attach("failed", old_store).fork()
    assert begun == []


def test_a_dry_fork_shows_the_command_and_starts_nothing(old_store: Path, begun: list[str]) -> None:
    accept(RunPaths(old_store / "stopped"))
    words = ("fork", "stopped", "--at", "18", "--dry-run")
    plan = json.loads(command(*words, "--json", root=old_store))
    assert (plan["run"], begun) == (None, [])
    assert "--resume" in plan["command"]
    assert plan["differs"]
    assert "--resume" in command(*words, root=old_store)
    assert sorted(path.name for path in old_store.glob("stopped*")) == ["stopped"]


def test_an_old_run_is_forked_and_its_fork_rerun(old_store: Path, begun: list[str]) -> None:
    accept(RunPaths(old_store / "stopped"))
    parent = wb.attach("stopped", old_store)
    child = parent.fork(at=18, arguments=["--lr", "1e-3", "--minutes", "1"])
    again = child.rerun()
    assert begun == ["stopped-2", "stopped-3"] == [child.id, again.id]
    assert child.document["resumed_from"]["run"] == "stopped"
    assert child.document["resumed_from"]["step"] == 18
    words = child.document["arguments"]
    assert words[words.index("--lr") + 1] == "1e-3"
    assert "--resume" in words
    assert (again.document["rerun_of"], again.document["arguments"]) == ("stopped-2", words)
    assert again.document["resumed_from"] == child.document["resumed_from"]
    assert {"what": "provenance", "was": None, "now": "recorded"} in child.differs
    assert again.differs == []
    assert parent.document["arguments"] == read_json(parent.directory / "run.json")["arguments"]  # type: ignore[index]


def test_a_rerun_has_the_arguments_of_the_latest_attempt(
    tmp_path: Path, begun: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "train.py"
    script.write_text("import accelerate\n")
    monkeypatch.chdir(tmp_path)
    asked = wb.request(script, ["--lr", "1", "--fail"], cpu=True, processes=1, store=tmp_path)
    paths, attempts = prepare(asked)[0], list[Any]([None, ["--lr", "5"], None])
    for number, words in enumerate(attempts):
        why = "failed" if number else None
        Attempts(paths).begin(first_step=0, checkpoint=None, why=why, arguments=words)
    request, _ = rerun_request(paths)
    assert list(request.arguments) == ["--lr", "5"]
    again = wb.Run(paths).rerun()
    assert again.document["arguments"] == ["--lr", "5"]
    assert begun == [again.id]
    assert again.notes[0] == "Its arguments are those of its latest attempt: --lr 5."


def test_what_has_changed_is_said_before_and_after(
    tmp_path: Path, begun: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    script, root = tmp_path / "train.py", tmp_path / "runs"
    (tmp_path / "data.bin").write_bytes(b"12")
    script.write_text("import accelerate\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    first = prepare(wb.request(script, ["--data", "data.bin"], cpu=True, processes=1, store=root))[
        0
    ]
    monkeypatch.chdir("/")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("NCCL_ALGO", "Tree")
    script.write_text("import accelerate  # changed\n")
    (tmp_path / "data.bin").write_bytes(b"123")
    text = command("rerun", "train", "--dry-run", "--json", root=root)
    assert begun == []
    planned = {one["what"]: (one["was"], one["now"]) for one in json.loads(text)["differs"]}
    assert set(planned) == {"file train.py", "data --data", "variable NCCL_ALGO"}
    assert planned["variable NCCL_ALGO"] == (None, "Tree")
    shown = command("rerun", "train", root=root)
    assert "file train.py" in shown
    assert f"are in {first.source}" in shown
    again = wb.attach(begun[0], root)
    origin = json.loads(command("show", begun[0], "--json", root=root))
    assert (origin["rerun_of"], origin["provenance"]["copied"]) == (
        first.directory.name,
        ["train.py"],
    )
    table = " ".join(command("show", begun[0], root=root).split())
    assert f"begun from rerun of {first.directory.name}" in table
    assert "code 1 file copied to source/" in table
    assert again.document["working_directory"] == str(tmp_path)  # not that of the terminal
    assert again.document["environment"]["OMP_NUM_THREADS"] == "3"


def test_a_folder_or_a_secret_that_is_gone_is_said(tmp_path: Path, begun: list[str]) -> None:
    paths = prepare(wb.request("gpt", cpu=True, processes=1, store=tmp_path / "runs"))[0]
    run = read_json(paths.run)
    assert run is not None
    write_json_atomic(
        paths.run, {**run, "working_directory": str(tmp_path / "gone"), "vouched": []}
    )
    accept(paths)
    with pytest.raises(UsageError, match=r"was started in .*gone, which no longer exists"):
        wb.Run(paths).rerun()
    assert begun == []


@pytest.mark.slow
def test_a_real_run_is_forked_and_rerun(start: Callable[..., wb.Run], store: Path) -> None:
    run = start("gpt", ("--steps", "4", "--checkpoint-every", "2", *TINY), processes=2)
    assert run.wait() == "succeeded", run.logs(tail=20)
    fork = run.fork(at=2, arguments=["--lr", "0.5"])
    again = run.rerun()
    until(lambda: not fork.status.live and not again.status.live, what=lambda: fork.logs(tail=20))
    assert (fork.outcome, again.outcome) == ("succeeded", "succeeded")
    loss = {
        one.id: {row["step"]: row["loss"] for row in one.metrics()} for one in (run, fork, again)
    }
    assert loss[again.id] == pytest.approx(loss[run.id])
    assert set(loss[fork.id]) == {3, 4}
    assert loss[fork.id][3] == pytest.approx(loss[run.id][3], rel=1e-3)  # before its first step
    assert loss[fork.id][4] != pytest.approx(loss[run.id][4], rel=1e-3)
    rows = json.loads(command("runs", "--json", root=store))
    origins = {
        row["run"]: (row["resumed_from"], row["resumed_step"], row["rerun_of"]) for row in rows
    }
    assert origins[fork.id] == (run.id, 2, None)
    assert origins[again.id] == (None, None, run.id)
    table = command("runs", root=store)
    assert f"├ {fork.id}" in table
    assert f"└ {again.id}" in table
    beside = json.loads(command("compare", fork.id, again.id, "--json", root=store))
    assert [(one["run"], one["depth"]) for one in beside["lineage"]] == [
        (run.id, 0),
        (fork.id, 1),
        (again.id, 1),
    ]
    assert f"step 2 of {run.id}" in command("compare", fork.id, again.id, root=store)
