"""`workbench.log`: whatever a script calls its values, none is lost and none is taken for ours."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import workbench as wb
from workbench.launching.capture.logged import LoggedValues, _nested
from workbench.observe.logged import read_row
from workbench.observe.text_samples import TextSamples
from workbench.observe.trackers.points import clean_name
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


@pytest.mark.parametrize(
    ("value", "number"),
    [
        *((odd, odd) for odd in (1e300, -1e300, 5e-324, math.inf)),
        *((odd, float(odd)) for odd in (2**63, -(2**70), np.float32(0.5), np.array(0.5))),
        *((odd, 0.5) for odd in (Decimal("0.5"), Fraction(1, 2), np.float64(0.5))),
        *((10**n, math.inf) for n in (400, 5000)),
        *((odd, math.inf) for odd in (Fraction(10**400), Decimal("1e400"))),
        *((odd, None) for odd in (True, "nan", "inf", None, 1j)),
    ],
    ids=lambda value: str(value)[:12] if not isinstance(value, int) else f"2^{value.bit_length()}",
)
def test_an_odd_number_costs_no_other_value(
    paths: RunPaths, value: Any, number: float | None
) -> None:
    wb.log(before=0.9, odd=value, after=0.8)
    (line,) = lines(paths)
    row = read_row(line, 0)
    assert row is not None
    assert (row.values["before"], row.values.get("odd"), row.values["after"]) == (0.9, number, 0.8)
    recorded = LoggedValues(str(paths.rank_said(1)))
    recorded.add(1, {"before": 0.9, "odd": value, "after": 0.8})
    recorded.drain()
    written = map(json.loads, paths.rank_said(1).read_text().splitlines())
    values = {name: value for line in written for name, value in line["values"].items()}
    usual = {"before": 0.9, "after": 0.8}
    assert values == usual | ({} if number is None else {"odd": number})


def test_an_integer_that_no_float_holds_costs_no_other_value() -> None:
    values = {"a": 2**70, "b": 10**400, "c": 1}
    row = read_row({"time": 5.0, "step": 2, "values": values}, 0)
    assert row is not None
    assert row.values == {"a": 2.0**70, "c": 1.0}


def test_names_that_a_tracker_would_take_for_one_are_kept_apart(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = "x" * 190
    logged = (
        "a b",
        "a_b",
        "a  b",
        "/a_b/",
        "a//c",
        "a/c",
        "d/rank-1",
        long + "long 1",
        long + "_2",
    )
    wb.log(dict.fromkeys(logged, 1.0), step=1)
    wb.log(dict.fromkeys(reversed(logged), 2.0), step=2)
    monkeypatch.setenv("RANK", "1")
    wb.log({"d": 3.0, long + "long 1": 4.0}, step=1)

    def told(fed: int) -> list[dict[str, float]]:
        progress = Progress(tracker="wandb", folder="", said={"0": fed})
        points = [
            point
            for rank in range(2)
            for point in _UserMetrics(paths, rank).read(progress, 3, everything=True)
        ]
        return [point.values for point in points]

    first, second, other = told(0)
    assert len(first) == len(logged)
    assert second == dict.fromkeys(first, 2.0)
    assert first.keys().isdisjoint(other)
    assert {"said/a_b", "said/a/c"} <= first.keys()
    assert max(map(len, (*first, *other))) <= 200
    assert all(clean_name(name) == name for name in (*first, *other))
    assert told(1) == [second, other]  # of a tracker that is attached again


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


_MLFLOW = """
import os, sys
from types import SimpleNamespace
import mlflow
from mlflow.tracking import fluent
from workbench.launching.capture.logged import LoggedValues, patch_functions

recorder = SimpleNamespace(logged=LoggedValues(sys.argv[1]), steps=7, owner=os.getpid(), rank=0)
patch_functions(recorder, fluent)
mlflow.set_experiment("x")
with mlflow.start_run():
    fluent.log_metric("a", 0.5, step=3)
    fluent.log_metric(key="b", value=0.25)
    fluent.log_metrics({"c": 1.0})
recorder.logged.drain()
"""


@pytest.mark.slow
def test_each_way_to_log_to_mlflow_is_seen(tmp_path: Path) -> None:
    """Of `log_metric`, which scripts call most, nothing was."""
    pytest.importorskip("mlflow")
    place = {"MLFLOW_TRACKING_URI": f"file://{tmp_path}/ml", "MLFLOW_ALLOW_FILE_STORE": "true"}
    said = tmp_path / "rank-0.said.jsonl"
    script = [sys.executable, "-c", _MLFLOW, str(said)]
    done = subprocess.run(
        script, env={**os.environ, **place}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    logged = [json.loads(line) for line in said.read_text().splitlines()]
    values = {name: value for line in logged for name, value in line["values"].items()}
    assert values == {"a": 0.5, "b": 0.25, "c": 1.0}
    assert {line["step"] for line in logged} == {7}


def test_dictionaries_in_what_wandb_is_given_are_names_with_dots() -> None:
    """As its own page shows them; they were left out."""
    given = {"train": {"loss": 1.0, "rewards": {"mean": 2.0}}, "lr": 0.1}
    wanted = {"train.loss": 1.0, "train.rewards.mean": 2.0, "lr": 0.1}
    assert _nested(None, given) == _nested(None, data=given) == wanted
