"""Samples of text: kept by step, bounded in the view, and shown as text."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.compare.made_runs import make_run
from workbench.launching.capture.recorder import Recorder
from workbench.observe.report_samples import samples
from workbench.observe.text_samples import TextSamples, read_samples

HOSTILE = "<img src=x onerror=alert(1)>"


def line(step: int, prompt: str, answer: str) -> dict[str, Any]:
    return {"time": 1.0, "step": step, "prompt": prompt, "answer": answer}


def test_a_step_done_again_replaces_its_answers_and_the_lowest_rank_counts() -> None:
    found = TextSamples()
    found.add(1, line(0, "a", "of rank 1"), 0)
    for step, answer in ((0, "x"), (5, "early"), (5, "late")):
        found.add(0, line(step, "a", answer), 0)
    found.add(1, line(9, "a", "of rank 1"), 0)
    found.add(0, {"time": 1.0, "prompt": "b", "answer": "no step of its own"}, 5)
    found.add(0, {"time": 1.0, "step": 6, "answer": "no prompt"}, 5)
    assert [tuple(row.values()) for row in found.rows()] == [
        (0, "a", "x"),
        (5, "a", "late"),
        (5, "b", "no step of its own"),
    ]
    assert found.document()["answers"] == [["x", None], ["late", "no step of its own"]]


def test_the_view_keeps_first_and_last_within_its_size() -> None:
    found = TextSamples()
    for step in range(0, 3000, 10):
        for prompt in range(30):
            found.add(0, line(step, f"{prompt} {'p' * 990}", "ä" * 1000), 0)
    shown = found.document()
    assert len(json.dumps(shown)) <= 8_500
    assert (shown["steps"][0], shown["steps"][-1]) == (0, 2990)
    assert len({row["step"] for row in found.rows()}) <= 200
    assert len(shown["prompts"]) == 16


def test_every_face_shows_them_as_text(tmp_path: Path) -> None:
    paths = make_run(tmp_path, "a", steps=2, view=False)
    rows = [line(0, HOSTILE, "\x1b[31mred"), line(5, HOSTILE, HOSTILE)]
    paths.rank_said(0).write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert [row["step"] for row in read_samples(paths, range(2))] == [0, 5]
    found = TextSamples()
    for row in rows:
        found.add(0, row, 0)
    page = samples(paths, {"text_samples": found.document()})
    assert "<img" not in page
    assert page.count("&lt;img") == 2
    assert samples(paths, {}) == ""


def test_work_outside_steps_is_no_step_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "metrics").mkdir()
    now = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    recorder = Recorder(str(tmp_path), 0)
    recorder._record(1.0, None)
    now[0] += 1.0
    with recorder.outside_steps() as alive:
        alive()
        recorder.forward(training=False)
        now[0] += 30.0
    now[0] += 0.5
    recorder.forward(training=True)
    now[0] += 2.0
    line = recorder._record(2.0, None).line()
    assert (line["step_seconds"], line["paused_seconds"], line["data_seconds"]) == (3.5, 30.0, 1.5)
    now[0] += 1.0
    assert recorder._record(3.0, None).seconds == 1.0
