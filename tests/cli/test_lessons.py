"""``workbench lessons``: a copy to work in, which a second copy leaves alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from workbench import lessons
from workbench.cli.entry import app


def test_the_lessons_and_what_they_import_are_copied_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    first = CliRunner().invoke(app, ["lessons"])
    assert first.exit_code == 0, first.output
    folder = tmp_path / "lessons"
    assert f"lessons are in {folder}." in first.output
    assert f"jupyter lab {folder}/00_start_here.ipynb" in first.output
    assert (folder / "simulated_ranks.py").is_file()
    (folder / "01_memory.ipynb").write_text("my answers")
    (folder / "02_do_you_need_more_gpus.ipynb").unlink()
    second = json.loads(CliRunner().invoke(app, ["lessons", "--json"]).stdout)
    assert second["copied"] == ["02_do_you_need_more_gpus.ipynb"]
    assert "01_memory.ipynb" in second["kept"]
    assert (folder / "01_memory.ipynb").read_text() == "my answers"


def test_they_come_with_an_installation_without_the_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wheel's shared data lies below the environment's prefix."""
    monkeypatch.setattr(lessons, "_REPOSITORY", tmp_path / "site-packages")
    monkeypatch.setattr("site.USER_BASE", str(tmp_path / "user"))
    monkeypatch.setattr("sys.prefix", str(tmp_path / "venv"))
    assert lessons.lessons_folder() is None
    with pytest.raises(lessons.HostError, match="has no lessons"):
        lessons.copy_lessons(tmp_path / "mine")
    share = tmp_path / "venv" / lessons._INSTALLED
    share.mkdir(parents=True)
    (share / "00_a.ipynb").write_text("{}")
    assert lessons.lessons_folder() == share
    assert lessons.copy_lessons(tmp_path / "mine").copied == ("00_a.ipynb",)


def test_a_file_in_the_place_of_the_folder_is_said(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("")
    done = CliRunner().invoke(app, ["lessons", str(tmp_path / "mine")])
    assert isinstance(done.exception, lessons.UsageError)


def test_the_wheel_has_them() -> None:
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8")
    assert f'"notebooks" = "{lessons._INSTALLED}"' in project
