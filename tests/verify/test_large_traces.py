"""Traces grow with the model and its steps: they are read beyond the size of other documents."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from workbench.errors import StoreError
from workbench.store.files import MAX_JSON_BYTES
from workbench.verifying import trace
from workbench.verifying.trace import FOLDER, read_trace


def written(folder: Path) -> Path:
    place = folder / FOLDER / "rank-0.json"
    place.parent.mkdir()
    place.write_text(json.dumps({"rank": 0, "steps": [{"step": 1}], "note": "x" * MAX_JSON_BYTES}))
    return folder


def test_a_trace_of_many_parameters_is_read(tmp_path: Path) -> None:
    found = read_trace(written(tmp_path), "ddp")
    assert [len(rank.steps) for rank in found.ranks] == [1]


def test_one_that_is_too_large_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "MAX_TRACE_BYTES", MAX_JSON_BYTES)
    with pytest.raises(StoreError, match=r"rank-0.json cannot be read: it is larger than"):
        read_trace(written(tmp_path), "ddp")


def test_a_torn_one_is_as_if_it_were_not_there(tmp_path: Path) -> None:
    place = tmp_path / FOLDER / "rank-0.json"
    place.parent.mkdir()
    place.write_text('{"rank": 0, "st')
    assert read_trace(tmp_path, "ddp").ranks == ()
