"""``workbench launch X -- --help``: the options of a recipe or script; nothing is started."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer.testing

from workbench.cli.entry import app

SCRIPT = """'''Trains a network.'''
import argparse
p = argparse.ArgumentParser(description=__doc__)
g = p.add_argument_group("model")
g.add_argument("--depth", type=int, default=4, help="number of blocks")
{more}p.parse_args()
open("trained", "w").close()
"""
LOOP = "for name in ('--a', '--b'):\n    p.add_argument(name)\n"


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "train.py"


def ask(*words: str) -> typer.testing.Result:
    result = typer.testing.CliRunner().invoke(app, ["launch", *words])
    assert result.exit_code == 0, result.output
    assert not Path("trained").exists()
    assert not Path("runs").exists()
    return result


def test_the_source_answers_without_a_run(script: Path) -> None:
    script.write_text(SCRIPT.format(more="") + "open('ran', 'w')\n")
    shown = ask("train.py", "--", "--help")
    assert "\n\nTrains a network.\n\n" in shown.stdout
    assert "model:\n  --depth DEPTH  number of blocks (default: 4)" in shown.stdout
    assert "nothing was run" in shown.stderr


def test_a_script_is_run_only_where_that_is_asked_for(script: Path) -> None:
    script.write_text("open('ran', 'w').close()\n" + SCRIPT.format(more=LOOP))
    shown = ask("train.py", "--", "--help")
    assert not Path("ran").exists()
    assert "workbench launch train.py --help-script" in shown.stderr
    assert "runs the script up to its parser" in shown.stderr
    document = json.loads(ask("train.py", "--help-script", "--json").stdout)
    assert Path("ran").exists()
    assert (document["read"], document["complete"]) == ("run", True)
    assert [one["names"] for one in document["options"]] == [["--a"], ["--b"], ["--depth"]]


@pytest.mark.usefixtures("script")
def test_the_help_of_a_launch_says_how_the_options_of_its_script_are_shown() -> None:
    shown = " ".join(ask("finetune", "--help").stdout.split())
    assert "Its options: workbench launch SCRIPT -- --help" in shown


@pytest.mark.usefixtures("script")
def test_a_recipe_shows_its_own_groups() -> None:
    shown = ask("gpt", "--", "--help").stdout
    assert shown.startswith("usage: workbench launch gpt --")
    assert all(f"\n{title}:\n" in shown for title in ("model", "batch", "schedule", "layout"))
