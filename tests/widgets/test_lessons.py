"""The list of lessons where Jupyter serves them, where it does not, and where there are none."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("ipywidgets", reason="the lab extra is not installed")

from workbench_widgets import lessons


def texts(folder: Path) -> list[str]:
    return [child.value for child in lessons.lesson_list(folder).children]


def test_lessons_link_to_documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "01_a.ipynb").write_text('{"cells": [{"source": ["# Tips & <tricks>"]}]}')
    monkeypatch.setattr(lessons, "served_path", lambda folder: 'my "notes"')
    (shown,) = texts(tmp_path)
    assert ">Tips &amp; &lt;tricks&gt;</a>" in shown
    assert "&quot;path&quot;: &quot;my \\&quot;notes\\&quot;/01_a.ipynb&quot;" in shown


def test_without_a_server_they_are_named(tmp_path: Path) -> None:
    assert texts(tmp_path) == [lessons._NO_LESSONS]
    (tmp_path / "01_a.ipynb").write_text('{"cells": [{"source": ["# Memory"]}]}')
    assert texts(tmp_path) == [
        f"Open a lesson from {tmp_path} in the file browser:",
        "01_a.ipynb: Memory",
    ]
