"""However long a run is: who acts on it or shows it reads a bounded part at a time."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import workbench as wb
from workbench.cli.entry import app
from workbench.diagnose import look_back
from workbench.launch import watching
from workbench.launch.attempts import Attempts
from workbench.observe import events
from workbench.store import files
from workbench.store.files import read_json, write_json_atomic
from workbench.store.layout import RunPaths

STEPS, RANKS = 600, 3


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunPaths:
    """A run of many chunks."""
    monkeypatch.setattr(files, "CHUNK_BYTES", 2000)
    found = wb.Store(tmp_path).create("long")
    write_json_atomic(
        found.run,
        {
            "run": "long",
            "name": "long",
            "marker": "none",
            "created_at": 1.0,
            "processes": RANKS,
            "device": "cpu",
            "capture": True,
            "cluster": {},
            "strategy_name": "ddp",
        },
    )
    for rank in range(RANKS):
        rows = (row(step, rank) for step in range(1, STEPS + 1))
        found.rank_metrics(rank).write_text("".join(json.dumps(one) + "\n" for one in rows))
    return found


def row(step: int, rank: int) -> dict[str, Any]:
    return {"step": step, "time": step + rank / 10, "loss": 1.0 + rank, "step_seconds": 0.5}


@pytest.fixture
def most_held(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many steps were in memory at once, each time that any became complete."""
    seen = list[int]()
    real = events.MetricStream.read

    def read(self: events.MetricStream, **how: bool) -> list[events.StepRow]:
        rows = real(self, **how)
        seen.append(len(rows) + len(self._pending))
        return rows

    monkeypatch.setattr(events.MetricStream, "read", read)
    return seen


def test_metrics_stream_and_give_what_a_list_gives(paths: RunPaths, most_held: list[int]) -> None:
    rows = list(events.iterate_metrics(paths, RANKS))
    assert [one["step"] for one in rows] == list(range(1, STEPS + 1))
    assert {one["loss"] for one in rows} == {2.0}
    assert max(most_held) < STEPS / 4


@pytest.mark.parametrize("gone", ["missing", "stopped early"])
def test_a_rank_that_ended_holds_nobody_up(
    gone: str, paths: RunPaths, most_held: list[int]
) -> None:
    path = paths.rank_metrics(1)
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:50]))
    if gone == "missing":
        path.unlink()
    rows = list(events.iterate_metrics(paths, RANKS))
    assert [one["step"] for one in rows] == list(range(1, STEPS + 1))
    assert max(most_held) < STEPS / 4


def test_json_is_printed_row_by_row_as_before(paths: RunPaths, tmp_path: Path) -> None:
    words = ["metrics", "long", "--store", str(tmp_path)]
    printed = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
    assert printed == wb.Run(paths).metrics()
    first = paths.rank_metrics(0)
    first.write_text(json.dumps({**row(1, 0), "loss": math.nan}) + "\n")
    (one,) = json.loads(CliRunner().invoke(app, [*words, "--json", "--rank", "0"]).stdout)
    assert one["loss"] is None
    first.write_text("")
    assert CliRunner().invoke(app, [*words, "--json", "--rank", "0"]).stdout == "[]\n"


def test_diagnosing_holds_a_bounded_part(paths: RunPaths, most_held: list[int]) -> None:
    look_back.work_out(paths)
    assert max(most_held) < STEPS / 4
    assert look_back._rows_between_looks(paths) == 16


def test_who_takes_over_a_long_run_knows_its_step_before_it_has_read_it(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "_CATCH_UP_SECONDS", 0.0)
    run = read_json(paths.run) or {}
    watch = watching.Watch(paths, run, Attempts(paths), begins=False)
    watch.catch_up()
    builder = watch._builder
    assert not builder.stream.at_end
    assert builder.steps < STEPS / 2
    assert watch.steps == STEPS
    assert watch.step_seconds == 0.5
    for _ in _until_read(watch):
        assert watch.steps == STEPS
    assert builder.steps == STEPS


def _until_read(watch: watching.Watch) -> Iterator[None]:
    while not watch._builder.stream.at_end:
        watch.read()
        yield
