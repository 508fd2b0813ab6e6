"""The report's findings, attempts and checkpoints: told in full, inert, and never in the way."""

from __future__ import annotations

import base64
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.widgets.sample_troubles import ATTEMPTS, CHECKPOINTS, HOSTILE, finding, hang
from workbench.observe.logged import LoggedRow
from workbench.observe.report import write_report
from workbench.observe.report_recovery import lost, troubles
from workbench.observe.series_tables import SeriesTables
from workbench.store.layout import RunPaths

RUN = {"run": "r", "name": HOSTILE, "script": "t.py", "environment": {}, "command": [HOSTILE]}
END = {"outcome": "failed", "message": HOSTILE, "exit_code": 1}

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
)


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    paths = RunPaths(tmp_path / "r")
    paths.directory.mkdir()
    paths.make_folders()
    return paths


def write(paths: RunPaths, **view: Any) -> str:
    known = {"step_seconds_median": 0.5, "usd_per_hour": 12.0}
    paths.run.write_text(json.dumps(RUN))
    paths.view.write_text(json.dumps({**known, **view}))
    write_report(paths, END)
    return paths.report.read_text()


def test_all_of_it_is_told(paths: RunPaths) -> None:
    paths.attempts.write_text("".join(json.dumps(line) + "\n" for line in ATTEMPTS))
    kept = [finding("straggler"), hang(), finding("spike", "note", cleared_at=9.0)]
    paths.findings.write_text(json.dumps({"findings": kept}))
    text = write(paths, checkpoints=CHECKPOINTS)
    kinds = re.findall(r"<h3>(\w+) <small>(\w+)", text)
    assert kinds == [("hang", "error"), ("straggler", "warning"), ("spike", "note")]
    for part in ("cause", "evidence", "next"):
        assert hang()[part] in text
    assert "rank 1 · since step 121 · 95 % sure" in text
    # 5.5 s at $12 an hour; as on the axis of cost, the pause is not paid
    assert "11 steps were made twice (5.5 s at the median step: $0.02); 10 s passed" in text
    assert "broken: model.safetensors has 1,000 of 428,113 bytes" in text
    assert text.count("step-00000") >= 4
    assert '<td class="wide">n/a</td>' in text  # the checkpoint of unknown size and time
    once = [ATTEMPTS[0] | {"first_step": 0}, *ATTEMPTS[1:]]
    once = [line | ({"last_step": 61} if line["event"] == "end" else {}) for line in once]
    paths.attempts.write_text("".join(json.dumps(line) + "\n" for line in once))
    assert "1 step was made twice (" in write(paths)
    assert "1 step was made twice; " in write(paths, step_seconds_median=None)
    assert "at the median step); " in write(paths, usd_per_hour=None)  # no "n/a" for dollars
    none = [line | ({"last_step": 60} if line["event"] == "end" else {}) for line in once]
    paths.attempts.write_text("".join(json.dumps(line) + "\n" for line in none))
    assert "no step was made twice; 10 s passed" in write(paths)


@pytest.mark.parametrize(
    ("length", "unit", "end"), [(100, "seconds", 100), (3000, "minutes", 50), (72_000, "hours", 20)]
)
def test_hardware_is_drawn_along_time_in_the_dashboards_units(
    paths: RunPaths, length: int, unit: str, end: int
) -> None:
    times = [1e9, 1e9 + length / 2, 1e9 + length]
    host = {"series": {"time": times, "cpu_percent": [5, 6, 7], "run_rss_bytes": [1, None, 3]}}
    names = ("util", "memory_bytes", "temperature_c", "power_w")
    card = {"id": "gpu0", "series": {"time": times, **{key: [1, 2, 3] for key in names}}}
    text = write(paths, started_at=1e9, host=host, devices=[card], nodes=2)
    charts = re.findall(r"<figure>.*?</figure>", text)
    assert len(charts) == 6
    assert all(f">{unit} since the start<" in chart for chart in charts)
    ticks = [float(tick) for tick in re.findall(r'y="202" [^>]*>([^<]+)<', charts[0])]
    assert ticks[-1] == end
    assert "all processes of the run on node 0" in text
    spread = {f"{name}{part}": [1, 2, 3] for name in names for part in ("_low", "", "_high")}
    text = write(paths, started_at=1e9, device_spread={"time": times, **spread})
    assert text.count(f">{unit} since the start<") == 4


def test_foreign_text_is_inert_and_no_script_is_in_it(paths: RunPaths) -> None:
    bad = dict.fromkeys(("kind", "cause", "evidence", "next"), HOSTILE)
    paths.findings.write_text(json.dumps({"findings": [{**finding("x", HOSTILE), **bad}]}))
    line = {"attempt": HOSTILE, "event": "end", "time": HOSTILE, "last_step": HOSTILE}
    begun = {**line, "event": "start", "why": HOSTILE, "first_step": None}
    paths.attempts.write_text(json.dumps(line) + "\n" + json.dumps(begun) + "\n")
    text = write(paths, checkpoints=[dict.fromkeys(CHECKPOINTS[0], HOSTILE), 7, None])
    assert "<img" not in text
    assert "<script" not in text
    assert text.count("&lt;img") >= 8


ACTIONS = (
    {"action": "launch", "arguments": ["t.py"]},
    {"action": "set", "arguments": ["lr=0.0001"], "step": 20, "done": True},
    {"action": "look", "arguments": ["--module", HOSTILE], "step": 30, "done": True},
    {"action": "evaluate", "arguments": [], "step": 40, "done": False, "why": "too late"},
    {"action": "checkpoint", "arguments": [], "step": 50, "done": True},
    {"action": "set", "arguments": ["lr=1"], "step": 5000, "done": True},
)


def test_what_was_asked_for_while_it_trained_is_marked_on_the_loss(paths: RunPaths) -> None:
    lines = (json.dumps({"time": 1.0, "by": "cli", **one}) for one in ACTIONS)
    paths.actions.write_text("\n".join(lines) + "\n")
    steps = [*range(0, 101, 10)]
    curve = {"step": steps, "loss": [1.0] * len(steps), "lr": [0.1] * len(steps)}
    text = write(paths, series=curve)
    loss, _, others = text.partition("</figure>")
    marks = re.findall(r'class="mark" x="([\d.]+)"[^>]*>◆<title>(.*?)</title>', loss)
    assert [said for _, said in marks][::2] == [
        "after step 20: set lr=0.0001",
        "after step 50: checkpoint",
    ]
    assert "after step 30: look --module &lt;img" in marks[1][1]
    places = [float(x) for x, _ in marks]
    assert places[1] - places[0] == pytest.approx((places[2] - places[0]) / 3, abs=0.1)
    assert '"mark"' not in others  # nor is what was not done
    assert "◆ after step 20: set lr=0.0001 · after step 30" in others  # for paper
    assert "evaluate" not in text


def test_a_number_at_the_end_of_the_range_costs_no_page(paths: RunPaths) -> None:
    """A script may log ``sys.float_info.max`` as its best loss so far."""
    losses = [sys.float_info.max, 2.0, -sys.float_info.max, 1.0, 0.5]
    tables = SeriesTables()
    for step, loss in enumerate(losses):
        tables.add(LoggedRow(step=step, time=float(step), values={"best": loss}))
    text = write(paths, logged=tables.document())
    assert text.count('<path class="line c0"') == 2
    assert "inf" not in text.split("<h2>Curves")[1].split("<h2>")[0]


def test_names_without_a_curve_are_counted(paths: RunPaths) -> None:
    """A figure of twelve names had eight curves, and nothing told of the others."""
    tables = SeriesTables()
    values = {f"train/acc{number}": 0.5 for number in range(12)}
    for step in range(3):
        tables.add(LoggedRow(step=step, time=float(step), values=values))
    document = tables.document()
    assert "4 more logged names: workbench metrics r --list" in write(paths, logged=document)
    assert "7 more logged names" in write(paths, logged={**document, "more_count": 3})
    few = {**document, "series": document["series"][:8]}
    assert "more logged names" not in write(paths, logged=few)


def test_a_calm_run_says_so_and_has_no_empty_tables(paths: RunPaths) -> None:
    text = write(paths)
    assert "<p>No findings.</p>" in text
    assert "Attempts" not in text
    assert "Checkpoints" not in text
    assert "◆" not in text


@pytest.mark.parametrize("rubbish", ["7", "[]", '{"findings": 7}', '{"findings": [7, null]}', "{"])
def test_rubbish_is_no_finding(paths: RunPaths, rubbish: str) -> None:
    paths.findings.write_text(rubbish)
    paths.attempts.write_text(
        '{"event": "start", "attempt": 1, "time": 1}\n\x00\x00\n[1]\n{"event": "sta'
    )
    assert "No findings" in troubles(paths, {"findings": rubbish, "attempts": 3})


def test_what_is_unknown_costs_an_unknown_sum() -> None:
    assert lost([], {}) is None
    assert lost(ATTEMPTS[:2], {}) is None  # ended, not started again
    cost = lost(ATTEMPTS, {"usd_per_hour": 10.0})
    assert cost is not None
    assert (cost.steps, cost.repeat_seconds, cost.usd) == (11, None, None)


def test_sample_pictures_are_in_the_page(paths: RunPaths) -> None:
    """As far as they are small: a page of 200 large ones could not be opened."""
    folder = paths.directory / "samples"
    folder.mkdir()
    (folder / "late.png").write_bytes(PIXEL)
    (folder / "large.png").write_bytes(PIXEL + bytes(2 << 20))
    (folder / "elsewhere.png").symlink_to(__file__)
    names = ["late", "large", "gone", "elsewhere"]
    answers = [[f"samples/{name}.png"] for name in names] + [["../run.json"], ["<b>"]]
    told = {"prompts": ["a cat"], "steps": list(range(len(answers))), "answers": answers}
    text = write(paths, text_samples=told)
    (source,) = re.findall(r'<img alt="samples/late.png" src="data:image/png;base64,(.*?)"', text)
    assert base64.b64decode(source) == PIXEL
    assert text.count("<img") == 1
    for name in ("samples/large.png", "samples/gone.png", "samples/elsewhere.png", "../run.json"):
        assert f"<td>{name}</td>" in text
    assert "<td>&lt;b&gt;</td>" in text
