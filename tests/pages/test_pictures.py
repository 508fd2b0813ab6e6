"""Pictures of the samples: those of the run alone, by name."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from workbench.pages.questions import answer
from workbench.store.layout import RunPaths


@pytest.mark.parametrize(
    "name",
    ["samples/b.png", "samples/../run.json", "run.json", "samples/link.png", "samples/a.png/x"],
)
def test_nothing_but_pictures_of_the_run_is_read(tmp_path: Path, name: str) -> None:
    (tmp_path / "samples").mkdir()
    (tmp_path / "samples" / "a.png").write_bytes(b"picture")
    (tmp_path / "run.json").write_text("{}")
    (tmp_path / "samples" / "link.png").symlink_to(tmp_path / "run.json")
    paths = RunPaths(tmp_path)
    assert answer("picture", paths, {"id": "1", "name": name})["value"] is None
    read = answer("picture", paths, {"id": "2", "name": "samples/a.png"})
    assert base64.b64decode(read["value"]) == b"picture"
