"""The list of lessons where Jupyter serves them, where it does not, and where there are none."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("ipywidgets", reason="the lab extra is not installed")

from workbench_widgets import lessons
from workbench_widgets.jupyter_files import served_path


def test_lessons_have_the_paths_of_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "01_a.ipynb").write_text('{"cells": [{"source": ["# Tips & <tricks>"]}]}')
    monkeypatch.setattr(lessons, "served_path", lambda folder: "my notes")
    shown = lessons.Lessons(tmp_path)
    expected = {"path": "my notes/01_a.ipynb", "name": "01_a.ipynb", "title": "Tips & <tricks>"}
    assert (shown.config["lessons"], shown.config["hint"]) == ([expected], "")


def test_without_a_server_they_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(lessons, "served_path", lambda folder: None)
    came = tmp_path / "came"
    came.mkdir()
    assert repr(lessons.Lessons(came)) == lessons._NO_LESSONS
    (came / "01_a.ipynb").write_text('{"cells": [{"source": ["# Memory"]}]}')
    shown = lessons.Lessons(came)
    assert shown.config["lessons"][0]["path"] is None
    assert repr(shown) == f"The lessons are in {came}.\n01_a.ipynb: Memory"


def test_a_press_copies_them_to_where_the_server_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after `pip install`: the notebooks lie outside of what Jupyter serves."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(lessons, "served_path", lambda folder: served_path(folder, [tmp_path]))
    shown = lessons.Lessons()
    assert shown.config["copy"] == "Copy them to lessons/"
    assert {one["path"] for one in shown.config["lessons"]} == {None}
    shown._receive("copy", {})
    assert (shown.config["copy"], shown.config["hint"]) == ("", "")
    assert shown.config["lessons"][1]["path"] == "lessons/01_memory.ipynb"
    assert lessons.Lessons().config["lessons"] == shown.config["lessons"]  # also after a restart


def test_what_goes_wrong_with_the_copy_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lessons").write_text("mine")
    monkeypatch.setattr(lessons, "served_path", lambda folder: None)
    shown = lessons.Lessons()
    shown._receive("copy", {})
    assert "lessons is a file. Give a folder" in shown.config["hint"]
    assert shown.config["copy"]
