"""`workbench.log`: whatever a script calls its values, none is lost and none is taken for ours."""

from __future__ import annotations

import json
import time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import workbench as wb
from workbench.observe.logged import read_row
from workbench.observe.text_samples import TextSamples
from workbench.observe.trackers.progress import Progress
from workbench.observe.trackers.source import _UserMetrics
from workbench.store.layout import RunPaths


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunPaths:
    found = wb.Store(tmp_path).create("logs")
    monkeypatch.setenv("WORKBENCH_RUN_DIR", str(found.directory))
    monkeypatch.setenv("RANK", "0")
    return found


def lines(paths: RunPaths) -> list[dict[str, Any]]:
    return [json.loads(line) for line in paths.rank_said(0).read_text().splitlines()]


@pytest.mark.parametrize("value", [0.35, "12.3 s", None, True])
@pytest.mark.parametrize("name", ["time", "rank", "values"])
def test_names_that_a_line_has_too_are_values_like_others(
    paths: RunPaths, name: str, value: object
) -> None:
    before = time.time()
    wb.log(acc=0.9, step=3, **{name: value})  # pyright: ignore[reportArgumentType]
    row = read_row(lines(paths)[0], 0)
    assert row is not None
    assert (row.step, row.values["acc"]) == (3, 0.9)
    assert before - 1 <= row.time <= time.time() + 1
    assert row.values.get(name) == (value if isinstance(value, float) else None)
    points = list(
        _UserMetrics(paths, 0).read(Progress(tracker="wandb", folder=""), 3, everything=True)
    )
    assert points[0].values["said/acc"] == 0.9
    assert (f"said/{name}" in points[0].values) == isinstance(value, float)


def test_a_dictionary_is_taken_as_it_is(paths: RunPaths) -> None:
    wb.log({"eval/acc": 0.5, "step": 7}, step=2, lr=0.1)
    assert [line["values"] for line in lines(paths)] == [{"eval/acc": 0.5, "step": 7, "lr": 0.1}]
    wb.log(17)  # pyright: ignore[reportArgumentType]  (never an error)
    wb.log({"acc": 1.0}, step=Decimal(4))  # pyright: ignore[reportArgumentType]  (as NumPy's)
    assert lines(paths)[-1]["step"] == 4


def test_lines_of_earlier_releases_are_read(paths: RunPaths) -> None:
    row = read_row({"time": 5.0, "step": 2, "acc": 0.5, "rank": 0}, 0)
    assert row is not None
    assert (row.time, row.values) == (5.0, {"acc": 0.5})


def test_samples_are_found_in_both_forms(paths: RunPaths) -> None:
    wb.log(step=1, prompt="a", answer="b")
    samples = TextSamples()
    samples.add(0, lines(paths)[0], 0)
    samples.add(0, {"time": 1.0, "step": 2, "prompt": "a", "answer": "c"}, 0)
    assert [row["answer"] for row in samples.rows()] == ["b", "c"]
