"""Text files as Windows editors and spreadsheets save them: with a byte-order mark."""

from __future__ import annotations

import codecs
import json
from pathlib import Path

from workbench.recipes.samples import prompts_of
from workbench.rehearsing.interruptions import read_trace
from workbench.trainer_configs.config_fields import read_text
from workbench.training_data.pictures import list_pictures


def marked(path: Path, text: str) -> Path:
    path.write_bytes(codecs.BOM_UTF8 + text.encode())
    return path


def test_no_first_line_is_lost(tmp_path: Path) -> None:
    row = json.dumps({"file_name": "a.png", "text": "a cat"})
    marked(tmp_path / "metadata.jsonl", f"{row}\n")
    (tmp_path / "a.png").write_bytes(b"")
    report = list_pictures(tmp_path)
    assert [picture.caption for picture in report.pictures] == ["a cat"]
    assert report.problems == ()
    assert read_trace(marked(tmp_path / "trace.txt", "12\n34\n")) == (12.0, 34.0)
    assert prompts_of([str(marked(tmp_path / "prompts.txt", "a dog\n"))]) == ["a dog"]
    assert read_text(marked(tmp_path / "job.toml", "[model]\n")).startswith("[")


def test_a_caption_beside_its_picture(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"")
    marked(tmp_path / "a.txt", "a cat")
    assert [picture.caption for picture in list_pictures(tmp_path).pictures] == ["a cat"]
