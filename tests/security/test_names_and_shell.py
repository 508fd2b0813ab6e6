"""S1, S2, S3: names stay in the store; arguments, paths and variables never reach a shell."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import workbench as wb
from tests.security.payloads import CANARY, SHELL
from workbench.launching.prepare import accelerate_config
from workbench.store import names
from workbench.trainer_configs import syntax

ECHO = "import json, os, sys; json.dump([sys.argv[1:], dict(os.environ)], open('said.json', 'w'))"
NAMES = [
    *("../../etc/x", "/abs", "a/../..", ".", "", "-rf", "a\0b", "x" * 300, "CON", "\u202egnp"),
    *("a\nb", "..", "~root", "a/b/../../..", "name/../../up", "\ud800", *SHELL),
]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_changes_nothing_outside_the_store(name: str, tmp_path: Path) -> None:
    root = tmp_path / "here" / "runs"
    root.mkdir(parents=True)
    try:
        directory = wb.Store(root).create(name).directory
    except wb.UsageError:
        assert not list(root.iterdir())
    else:
        assert directory.resolve().parent == root.resolve()
        assert names.is_id(directory.name)
    assert os.listdir(tmp_path) == ["here"]
    assert os.listdir(tmp_path / "here") == ["runs"]


@pytest.mark.parametrize("name", NAMES)
def test_no_text_finds_a_run_outside_the_store(name: str, tmp_path: Path) -> None:
    root = tmp_path / "runs"
    wb.Store(root).create("only")
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(wb.RunNotFoundError):
        wb.attach(name or "..", root)


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> wb.Request:
    """A request in which every text that a user can give is a command to a shell."""
    place = tmp_path / "$(touch canary-was-touched) 'x'"
    place.mkdir()
    monkeypatch.chdir(place)
    script = place / "`touch canary-was-touched`;.py"
    script.write_text(ECHO)
    return wb.request(
        script,
        SHELL,
        cpu=True,
        processes=1,
        name="; touch canary-was-touched $(x)",
        store=place / "$(touch canary-was-touched)",
        environment={f"PAYLOAD_{index}": text for index, text in enumerate(SHELL)},
    )


def touched(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.name == CANARY]


@pytest.mark.slow
def test_the_ejected_text_passes_every_argument_on_as_it_is(
    hostile: wb.Request, tmp_path: Path
) -> None:
    done = subprocess.run(["bash", "-c", hostile.shell()], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    arguments, environment = json.loads((hostile.working_directory / "said.json").read_text())
    assert arguments == SHELL
    assert [environment[f"PAYLOAD_{index}"] for index in range(len(SHELL))] == SHELL
    assert touched(tmp_path) == []


@pytest.mark.slow
def test_a_launch_passes_every_argument_on_as_it_is(hostile: wb.Request, tmp_path: Path) -> None:
    run = wb.start(hostile)
    assert run.wait(120) is not None
    arguments, _ = json.loads((hostile.working_directory / "said.json").read_text())
    assert arguments == SHELL
    assert touched(tmp_path) == []
    assert run.document["arguments"] == [wb_shown(text) for text in SHELL]


def wb_shown(text: str) -> str:
    """As a document of the store is read: without what a terminal would obey."""
    return text.replace("\r", "")


@pytest.mark.parametrize("name", ["A;touch x", "$(touch x)", "a b", "=", "", "A\nB", "1A"])
def test_a_variable_needs_a_name(name: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("")
    with pytest.raises(wb.UsageError):
        wb.request(script, cpu=True, processes=1, store=tmp_path, environment={name: "1"})


@pytest.mark.parametrize("text", SHELL)
def test_config_files_hold_texts_as_they_are(text: str) -> None:
    strategy = wb.Strategy.parse("fsdp", 2)
    written = accelerate_config.config_text(strategy, text)
    read = yaml.safe_load(written)
    assert read["fsdp_config"]["fsdp_transformer_layer_cls_to_wrap"] == text
    assert not any(line.strip() == "END" for line in written.splitlines())
    assert list(read) == list(yaml.safe_load(accelerate_config.config_text(strategy, "Block")))


def test_the_printed_command_reads_back(hostile: wb.Request) -> None:
    line = hostile.shell()[hostile.shell().rindex("cd ") :]
    words = shlex.split(line)
    assert words[-len(SHELL) :] == SHELL
    assert sys.executable in words


@pytest.mark.parametrize("text", SHELL)
def test_a_trainers_script_passes_every_word_on_as_it_is(text: str, tmp_path: Path) -> None:
    """Also a value that looks like an option."""
    words = ["--model", f"--{text}", "--names", text]
    said = tmp_path / "said.py"
    said.write_text(ECHO)
    start = [sys.executable, str(said)]
    shell = syntax.script_file(start, words, [f"Start: {text}"], {"PAYLOAD": text})
    done = subprocess.run(["sh", "-c", shell], cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    arguments, environment = json.loads((tmp_path / "said.json").read_text())
    assert (arguments, environment["PAYLOAD"]) == (words, text)
    assert touched(tmp_path) == []
