"""The list of lessons where Jupyter serves them, where it does not, and where there are none."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("ipywidgets", reason="the lab extra is not installed")

from workbench_widgets import lessons


def test_lessons_have_the_paths_of_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "01_a.ipynb").write_text('{"cells": [{"source": ["# Tips & <tricks>"]}]}')
    monkeypatch.setattr(lessons, "served_path", lambda folder: "my notes")
    shown = lessons.Lessons(tmp_path)
    expected = {"path": "my notes/01_a.ipynb", "name": "01_a.ipynb", "title": "Tips & <tricks>"}
    assert (shown.config["lessons"], shown.config["hint"]) == ([expected], "")


def test_without_a_server_they_are_named(tmp_path: Path) -> None:
    assert repr(lessons.Lessons(tmp_path)) == lessons._NO_LESSONS
    (tmp_path / "01_a.ipynb").write_text('{"cells": [{"source": ["# Memory"]}]}')
    shown = lessons.Lessons(tmp_path)
    assert shown.config["lessons"][0]["path"] is None
    assert repr(shown) == (
        f"Open a lesson from {tmp_path} in the file browser:\n01_a.ipynb: Memory"
    )
