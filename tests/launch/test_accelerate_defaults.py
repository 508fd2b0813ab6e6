"""What a script leaves to Accelerate comes from where ``accelerate launch`` would take it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import workbench as wb
from workbench.engines.commands import plain_commands
from workbench.engines.export_request import export
from workbench.engines.launching import launch_text
from workbench.launching.prepare.accelerate_defaults import PRECISION
from workbench.launching.resume.run_options import options_of
from workbench.launching.start.start import prepare
from workbench.store.record import read_record

_CONFIG = """\
compute_environment: LOCAL_MACHINE
distributed_type: 'NO'
mixed_precision: bf16
dynamo_config:
  dynamo_backend: EAGER
  dynamo_use_dynamic: true
  dynamo_use_fullgraph: false
"""
_SCRIPT = """\
from accelerate import Accelerator

print("trains in", Accelerator().mixed_precision, flush=True)
"""
_BACKEND = "ACCELERATE_DYNAMO_BACKEND"


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A script that names no precision, of a user who has not run ``accelerate config``."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    for name in (PRECISION, _BACKEND):
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "train.py"
    path.write_text(_SCRIPT)
    return str(path)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """What ``accelerate config`` wrote."""
    path = tmp_path / "hf" / "accelerate" / "default_config.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(_CONFIG)
    return path


def asked(script: str, folder: Path, **environment: str) -> wb.Request:
    return wb.request(script, store=folder / "runs", cpu=True, processes=1, environment=environment)


def told(command: list[str], flag: str = "mixed_precision") -> str:
    return command[command.index(f"--{flag}") + 1]


def test_the_users_own_config_counts_and_the_record_says_so(
    script: str, config: Path, tmp_path: Path
) -> None:
    request = asked(script, tmp_path)
    assert (told(request.command), told(request.command, "dynamo_backend")) == ("bf16", "eager")
    assert "--dynamo_use_dynamic" in request.command
    assert "--dynamo_use_fullgraph" not in request.command
    assert f"mixed_precision bf16 (accelerate config: {config})" in request.warnings[0]
    assert f"{PRECISION}=bf16" in request.shell()
    paths, _ = prepare(request)
    config.unlink()  # what the run began with counts when it is started again
    again = options_of(paths, read_record(paths)).environment
    assert (again[PRECISION], again[_BACKEND]) == ("bf16", "EAGER")
    told_again = asked(script, tmp_path, **again)
    assert told(told_again.command) == "bf16"
    assert not [text for text in told_again.warnings if "Accelerate is told" in text]


def test_what_is_given_counts_before_the_environment_and_that_before_the_config(
    script: str, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PRECISION, "fp16")
    request = asked(script, tmp_path)
    assert told(request.command) == "fp16"
    assert "this environment). It counts" in request.warnings[0]
    assert told(asked(script, tmp_path, **{PRECISION: "no"}).command) == "no"
    with pytest.raises(wb.UsageError, match=r"'half'.*no, fp16, bf16, fp8"):
        asked(script, tmp_path, **{PRECISION: "half"})


def test_without_any_of_them_it_is_off_as_for_accelerate_launch(
    script: str, tmp_path: Path
) -> None:
    request = asked(script, tmp_path)
    assert (told(request.command), told(request.command, "dynamo_backend")) == ("no", "no")
    assert PRECISION not in request.environment


@pytest.mark.parametrize("text", ["[broken", "- a list\n", "mixed_precision: half\n", "a: no\n"])
def test_a_config_that_says_nothing_prevents_no_start(
    script: str, config: Path, tmp_path: Path, text: str
) -> None:
    config.write_text(text)
    request = asked(script, tmp_path)
    assert told(request.command) == "no"
    assert not [word for word in request.warnings if "Accelerate is told" in word]


def test_json_of_an_early_accelerate_and_settings_of_fp8(script: str, tmp_path: Path) -> None:
    path = tmp_path / "hf" / "accelerate" / "default_config.json"
    path.parent.mkdir(parents=True)
    section = {"backend": "te", "margin": 2, "use_autocast_during_eval": True}
    path.write_text(
        json.dumps({"mixed_precision": "fp8", "dynamo_backend": "NO", "fp8_config": section})
    )
    command = asked(script, tmp_path).command
    assert (told(command), told(command, "fp8_backend"), told(command, "fp8_margin")) == (
        *("fp8", "te", "2"),
    )
    assert "--fp8_use_autocast_during_eval" in command
    assert told(command, "dynamo_backend") == "no"


def test_a_recipe_says_its_precision_itself(config: Path, script: str, tmp_path: Path) -> None:
    request = asked("gpt", tmp_path)
    assert (told(request.command), told(request.command, "dynamo_backend")) == ("no", "no")
    assert PRECISION not in request.environment


@pytest.mark.parametrize("engine", ["accelerate", "skypilot"])
def test_an_export_is_told_the_same_and_says_so(script: str, config: Path, engine: str) -> None:
    made = export(script, engine, gpu="h100-sxm", processes_per_node=2)
    assert "--mixed_precision bf16" in "".join(made.files.values())
    assert "Accelerate is told mixed_precision bf16, as on this machine." in made.notes
    assert f"{PRECISION}=bf16" in plain_commands(made.job, "10.0.0.1")[0]
    text = launch_text(made.job)
    assert "--mixed_precision bf16" in text
    assert f"export {PRECISION}" not in text  # values stay in the engine's own file


def test_the_launcher_takes_every_flag(script: str, config: Path, tmp_path: Path) -> None:
    from accelerate.commands.launch import launch_command_parser

    command = asked(script, tmp_path).command
    known = launch_command_parser().parse_args(command[3:])
    assert (known.mixed_precision, known.dynamo_backend) == ("bf16", "eager")
    assert (known.dynamo_use_dynamic, known.dynamo_use_fullgraph) == (True, False)


@pytest.mark.full
def test_a_script_trains_in_what_accelerate_config_says(
    script: str, config: Path, store: Path
) -> None:
    run = wb.launch(script, store=store, cpu=True, processes=1)
    run.wait(120)
    assert "trains in bf16" in run.logs()
