"""``workbench resume --dry-run``: what would start is told, and nothing is touched."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import workbench as wb
from workbench.cli.entry import app
from workbench.cli.json_keys import FORMS
from workbench.recover.checkpoints import list_checkpoints
from workbench.store.layout import RunPaths


def _planned(store: Path, *words: str, run: str = "stopped") -> dict[str, Any]:
    done = CliRunner().invoke(
        app, ["resume", run, "--dry-run", "--json", "--store", str(store), *words]
    )
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def _files(store: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(store.rglob("*")) if path.is_file()}


def test_what_would_start_is_told_and_nothing_is_touched(old_store: Path) -> None:
    assert CliRunner().invoke(app, ["adopt", "stopped", "--store", str(old_store)]).exit_code == 0
    before = _files(old_store)
    same = _planned(old_store, "--", "--steps", "20")
    assert set(same) == set(FORMS["resume --dry-run"].keys)
    assert (same["run"], same["same_run"], same["step"]) == ("stopped", True, 18)
    assert same["checkpoint"].endswith("step-00000018")
    assert same["command"][-2:] == ["--resume", same["checkpoint"]]
    assert same["command"][same["command"].index("--steps") + 1] == "20"
    assert any(path.endswith("accelerate.yaml") for path in same["config_files"])

    assert _planned(old_store, "--", "--steps", "20", run=str(old_store / "stopped")) == same

    other = _planned(old_store, "--strategy", "fsdp", "--", "--steps", "20")
    assert (other["run"], other["same_run"], other["step"]) == (None, False, 18)
    assert "fsdp" in " ".join(other["config_files"].values()).lower()
    assert len(wb.runs(old_store)) == 3
    assert _files(old_store) == before


def test_a_run_of_a_store_that_was_moved_is_resumed_where_it_lies(old_store: Path) -> None:
    store = old_store.with_name("moved")
    shutil.copytree(old_store, store)
    CliRunner().invoke(app, ["adopt", "stopped", "--store", str(store)])
    paths = RunPaths(store / "stopped")
    command = _planned(store, "--", "--steps", "20")["command"]
    assert command[command.index("--config_file") + 1] == str(paths.config / "accelerate.yaml")
    newest, before, *_ = list_checkpoints(paths)
    gone = [str(old_store / "stopped" / "checkpoints" / newest.name), newest.saved_at]
    line = {"attempt": 1, "event": "start", "time": 1.0, "given_up": [gone]}
    with paths.attempts.open("a") as file:
        file.write(json.dumps(line) + "\n")
    assert _planned(store, "--", "--steps", "20")["step"] == before.step


def test_it_is_one_line_on_where_and_one_on_what(old_store: Path) -> None:
    words = ["--store", str(old_store)]
    CliRunner().invoke(app, ["adopt", "stopped", *words])
    shown = CliRunner().invoke(
        app, ["resume", "stopped", "--dry-run", *words, "--", "--steps", "20"]
    )
    where, *_, command = shown.output.strip().splitlines()
    assert where.startswith("continues in stopped, from step 18: ")
    assert " -m accelerate.commands.launch " in command
    refused = CliRunner().invoke(app, ["resume", "s3://bucket/runs/a", "--dry-run"])
    assert "First: workbench pull s3://bucket/runs/a" in str(refused.exception)


@pytest.mark.parametrize(
    ("saves", "layout", "refused"),
    [
        ("model.safetensors", ["--strategy", "fsdp"], "Resume under single or ddp, or launch"),
        ("model.safetensors", ["--strategy", "zero2"], "does not load that under zero2 on 2 ranks"),
        ("model.safetensors", ["--strategy", "single", "--nproc", "1"], ""),
        ("pytorch_model_fsdp_0", ["--strategy", "fsdp"], ""),
    ],
)
def test_trainer_loads_what_it_saved_in_the_same_form_alone(
    old_store: Path, tmp_path: Path, saves: str, layout: list[str], refused: str
) -> None:
    """The run was one of ddp; what fsdp saved is not its own, and not judged."""
    words = ["--store", str(old_store)]
    CliRunner().invoke(app, ["adopt", "stopped", *words])
    saved = tmp_path / "checkpoint-5"
    saved.mkdir()
    (saved / "trainer_state.json").write_text('{"global_step": 5}')
    (saved / saves).write_bytes(b"\x02" + bytes(7) + b"{}")  # without tensors
    told = ["resume", "stopped", "--checkpoint", str(saved), *layout, "--dry-run", *words]
    done = CliRunner().invoke(app, told)
    assert refused in str(done.exception or "")
    assert done.exit_code == bool(refused)
