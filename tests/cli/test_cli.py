"""The command line's contract: exit codes, JSON on stdout alone, clear refusals."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import workbench as wb
from tests.cli.conftest import Command
from tests.conftest import SCRIPTS
from workbench import recipes
from workbench.store.files import write_json_atomic


def in_a_process(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """The command as a shell starts it; most tests run it in their own process instead."""
    command = [sys.executable, "-m", "workbench.cli", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, cwd=cwd, timeout=120, check=False
    )


def test_dry_run_shows_command_and_config_and_starts_nothing(tmp_path: Path) -> None:
    result = in_a_process(
        "launch", "gpt", "--cpu", "--dry-run", "--json", "--", "--steps", "5", cwd=tmp_path
    )
    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout)
    assert document["run"] is None
    assert document["command"][1:3] == ["-m", "accelerate.commands.launch"]
    assert document["command"][-2:] == ["--steps", "5"]
    (text,) = document["config_files"].values()
    assert '"MULTI_GPU"' in text
    assert document["environment"]["ACCELERATE_USE_CPU"] == "true"
    assert "WORKBENCH" not in document["shell"]
    assert not (tmp_path / "runs").exists()


def test_the_help_of_a_recipe_is_its_own_and_starts_nothing(
    command: Command, tmp_path: Path
) -> None:
    for name in recipes.recipes():
        result = command("launch", name, "--", "--help", cwd=tmp_path)
        assert result.code == 0, result.err
        assert result.out.startswith(f"usage: workbench launch {name} -- [")
        assert "--steps" in result.out
        assert ".py" not in result.out.partition("options:")[0]
    document = json.loads(command("launch", "gpt", "--json", "--", "-h", cwd=tmp_path).out)
    assert document["help"].startswith("usage: workbench launch gpt")
    assert not (tmp_path / "runs").exists()


REFUSALS = [
    (("launch", "trian.py"), "No script 'trian.py'"),
    (("launch", "gtp"), "Did you mean gpt"),
    (("launch", "Fine-Tune"), "Did you mean finetune"),
    (("launch", "keras"), "Did you mean keras_mirrored"),
    (("launch", "syntax.py"), "line 2"),
    (("launch", "binary.py"), "not a Python script"),
    (("launch", "."), "is a folder"),
    (("verify", ""), "SCRIPT is empty."),
    (("launch", "gpt", "--nproc", "0"), "at least 1"),
    (("launch", "gpt", "--nproc", "-3"), "at least 1"),
    (("launch", "gpt", "--cpu", "--nproc", "9999"), "at most 64"),
    (("launch", "gpt", "--strategy", "fdsp"), "Did you mean fsdp"),
    (("launch", "gpt", "--strategy", "fsdp2-ep2"), "spreads its own experts"),
    (("launch", "gpt", "--strategy", "single", "--nproc", "2"), "runs 1 process"),
    (("launch", "gpt", "--name", "../x"), "looks like a path"),
    (("launch", "gpt", "--port", "99999"), "between 0"),
    (("launch", "gpt", "--", "--size", "minus"), "--size"),
    (("launch", "gpt", "--", "--sizee", "2"), "--sizee"),
    (
        ("memory", "--model", "gpt2", "--seq-len", "4k"),
        "seq_len must be a whole number from 1 to 16,777,216, not '4k'. Write it in full: 4000 or 4096.",
    ),
    (("cost", "--model", "gpt2", "--gpus", "two"), "gpus must be a whole number from 1 to 128"),
    (("show", "nothing"), "No runs in"),
    (("stop",), "No runs in"),
]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    REFUSALS,
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_bad_input_is_one_clear_sentence_and_exit_code_2(
    command: Command, arguments: tuple[str, ...], sentence: str, tmp_path: Path
) -> None:
    (tmp_path / "syntax.py").write_text("import os\nprint('never closed\n")
    (tmp_path / "binary.py").write_bytes(b"\x00\x01\x02")
    result = command(*arguments, cwd=tmp_path)
    assert result.code == 2, result.out
    message = " ".join(result.err.split())
    assert sentence in message
    assert "Traceback" not in result.err
    assert not list((tmp_path / "runs").glob("*"))


def test_a_folder_that_was_deleted_is_one_sentence(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scheduler cleaned it up, or another branch does not have it."""
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    for words in (("runs",), ("launch", "train.py", "--dry-run")):
        result = command(*words)
        assert result.code == 2
        assert (
            result.err
            == "error: The current folder was deleted. Go to one that is there, with cd.\n"
        )


@pytest.mark.parametrize("words", [("data",), ("memory", "--config"), ("launch",)])
def test_a_home_of_nobody_is_one_sentence(command: Command, words: tuple[str, ...]) -> None:
    result = command(*words, "~no-such-user/x.py")
    assert (result.code, result.out) == (2, "")
    assert "an unknown user" in result.err


def test_unwritable_store_is_exit_code_1(command: Command, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    store = str(tmp_path / "file" / "runs")
    result = command("launch", str(SCRIPTS / "no_steps.py"), "--cpu", "--store", store)
    assert result.code == 1
    assert "must be a folder, and" in " ".join(result.err.split())


def test_it_refuses_to_run_beside_the_other_workbench(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "workbench-0.8.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: workbench\nVersion: 0.8.1\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    result = in_a_process("launch", "gpt", "--dry-run", cwd=tmp_path)
    assert result.returncode == 1
    assert "workbench 0.8.1 installs an import package of the same name" in " ".join(
        result.stderr.split()
    )


def test_json_errors_are_json_too(command: Command, tmp_path: Path) -> None:
    result = command("show", "x", "--json", "--store", str(tmp_path))
    assert result.code == 2
    assert "error" in json.loads(result.out)


def test_runs_of_an_empty_store(command: Command, tmp_path: Path) -> None:
    assert json.loads(command("runs", "--json", "--store", str(tmp_path)).out) == []
    assert "workbench launch gpt" in command("runs", "--store", str(tmp_path)).out


def test_an_empty_log_is_said_to_be_empty(command: Command, tmp_path: Path) -> None:
    paths = wb.Store(tmp_path).create("silent")
    record = {"run": "silent", "name": "silent", "created_at": 1.0, "processes": 2, "nodes": 1}
    write_json_atomic(paths.run, record)
    for rank, text in enumerate(("step 1\n", "")):
        paths.rank_log(rank).write_text(text)
    store = ("--store", str(tmp_path))
    silent = command("logs", "silent", "--rank", "1", *store)
    assert (silent.code, silent.out) == (0, "")
    assert silent.err == "Rank 1 has printed nothing in silent.\n"
    assert command("logs", "silent", "--rank", "0", *store).err == ""


def test_doctor_names_every_check(command: Command, tmp_path: Path) -> None:
    result = command("doctor", "--json", "--store", str(tmp_path))
    document = json.loads(result.out)
    names = {check["name"] for check in document["checks"]}
    assert {"torch", "accelerate", "GPUs", "shared memory", "ports", "disk", "run store"} <= names
    assert document["ok"] == all(check["ok"] for check in document["checks"])
    assert result.code == (0 if document["ok"] else 1)
    assert all(check["fix"] for check in document["checks"] if not check["ok"])


@pytest.mark.slow
def test_a_run_seen_through_every_command(command: Command, tmp_path: Path) -> None:
    store = ("--store", str(tmp_path))
    script = str(SCRIPTS / "raw_ddp.py")
    name = "<b>bold</b> [red]markup[/]"
    launched = command(
        *("launch", script, "--cpu", "--warm", "--name", name, "--wait", *store),
        *("--", "--steps", "6"),
    )
    assert launched.code == 0, launched.err
    runs = json.loads(command("runs", "--json", *store).out)
    assert [(run["name"], run["outcome"], run["steps"]) for run in runs] == [(name, "succeeded", 6)]
    assert "[red]markup" in command("show", *store).out
    shown = json.loads(command("show", "last", "--json", *store).out)
    contract = {
        *("run", "state", "outcome", "exit_code", "failed_rank", "strategy", "world_size", "steps"),
        *("loss_first", "loss_last", "step_seconds_median", "tokens_per_second"),
        *("peak_memory_bytes", "predicted", "restarts", "findings", "started_at", "ended_at"),
    }
    assert contract <= shown.keys()
    rows = json.loads(command("metrics", "last", "--rank", "1", "--json", *store).out)
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert rows[0].keys() >= {"step", "rank", "time", "loss", "lr", "grad_norm", "step_seconds"}
    last = json.loads(command("metrics", "last", "--tail", "2", "--json", *store).out)
    assert [row["step"] for row in last] == [5, 6]
    assert "rank 1 step 6" in command("logs", "last", "--rank", "1", *store).out
    assert command("logs", "last", "--rank", "7", *store).code == 2
    assert "succeeded" in command("attach", "last", *store).out
    stopped = json.loads(command("stop", "last", "--json", *store).out)
    assert stopped == {"run": shown["run"], "outcome": "succeeded", "processes_left": 0}


@pytest.mark.slow
def test_a_failing_script_is_exit_code_1(command: Command, tmp_path: Path) -> None:
    script = str(SCRIPTS / "raw_ddp.py")
    arguments = ("--steps", "900", "--raise-at", "2")
    result = command(
        *("launch", script, "--cpu", "--warm", "--wait", "--store", str(tmp_path)),
        *("--", *arguments),
    )
    assert result.code == 1
