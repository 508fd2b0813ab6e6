"""Steps that a script did again within an attempt count once, for every reader."""

from __future__ import annotations

import json
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from workbench.compare import export
from workbench.diagnose.offline import diagnose_offline
from workbench.launching.resume.attempts import furthest
from workbench.observe import current_view
from workbench.observe.events import MetricStream, read_metrics
from workbench.observe.report_recovery import lost
from workbench.observe.rewinds import read_rewinds
from workbench.observe.trackers.progress import Progress
from workbench.observe.trackers.source import Source
from workbench.observe.view import ViewBuilder
from workbench.observe.view_json import encode
from workbench.store.cut_lines import cut_after
from workbench.store.layout import RunPaths
from workbench.store.run_record import RunRecord

RUN: dict[str, Any] = {
    "run": "r", "name": "r", "strategy_name": "ddp", "processes": 2, "device": "cpu",
    "cluster": {"gpus": []}, "steps_total": 100, "tokens_per_step": 10, "usd_per_hour": 3.6,
    "created_at": 1000.0,
}  # fmt: skip
NOW = {"phase": "running", "started_at": 1000.0, "ended_at": None, "elapsed_seconds": 60.0}
# The steps of both passes, two returns, and what counts of them: (step, number of the pass).
PASSES = [range(1, 51), range(41, 61), range(21, 71)]


def write(paths: RunPaths, passes: list[range], ranks: int = 2, *, first: int = 0) -> None:
    """Passes `first` and later, as the hook of each rank writes them."""
    for rank in range(ranks):
        for number, steps in enumerate(passes[first:], first):
            before = passes[number - 1][-1] if number else None
            with paths.rank_metrics(rank).open("a") as file:
                for step in steps:
                    at = 1000.0 + 100 * number + step
                    line = {"step": step, "time": at, "loss": number + step / 1000}
                    if step == steps[0] and before is not None:
                        line["rewound_from"] = before
                        note = {"step": step, "rewound_from": before, "time": at}
                        with paths.rank_rewinds(rank).open("a") as notes:
                            notes.write(json.dumps(note) + "\n")
                    file.write(json.dumps(line) + "\n")


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    made = RunPaths(tmp_path)
    made.make_folders()
    made.run.write_text(json.dumps(RUN))
    return made


def check_series(view: dict[str, Any]) -> None:
    assert view["steps"] == 70
    assert view["series"]["step"] == list(range(1, 71))
    assert view["series"]["loss"] == [(0 if s < 21 else 2) + s / 1000 for s in range(1, 71)]
    assert view["steps_redone"] == 10 + 40
    known = [(one["first"], one["last"]) for one in view["rewinds"]]
    assert known == [(41, 50), (21, 60)]


@pytest.mark.parametrize("live", [True, False])
def test_the_view_has_each_step_once(paths: RunPaths, live: bool) -> None:  # noqa: FBT001
    """Whether the reader was there when the script went back, or comes later."""
    builder = ViewBuilder(paths, RunRecord.of(RUN))
    for number in range(len(PASSES)):
        write(paths, PASSES[: number + 1], first=number)
        if live:
            builder.read()
    builder = builder if live else ViewBuilder(paths, RunRecord.of(RUN))
    builder.read()
    view = json.loads(encode(builder.snapshot(NOW)))
    check_series(view)
    assert furthest(paths) == 70
    assert view["timeline"]["step"] == sorted(set(view["timeline"]["step"]))
    assert lost([], {**view, "step_seconds_median": 2.0}).steps == 50


def test_steps_ahead_of_the_present_one_are_not_reported(paths: RunPaths) -> None:
    """Progress goes back with the script."""
    builder = ViewBuilder(paths, RunRecord.of(RUN))
    write(paths, [range(1, 51), range(41, 46)])
    builder.read()
    assert builder.steps == 45
    assert furthest(paths) == 45
    now = current_view.latest(paths, {}, until=time.time())  # of a run that no one watches
    assert (now["steps"], now["loss_last"]) == (45, 1.045)


def test_the_bill_of_a_run_that_no_one_watches_goes_on_and_its_loss_is_a_number(
    paths: RunPaths,
) -> None:
    write(paths, [range(1, 51)])
    with paths.rank_metrics(1).open("a") as file:
        file.write('{"step":51,"time":51.0,"loss":NaN}\n')
    with paths.rank_metrics(0).open("a") as file:
        file.write('{"step":51,"time":51.0,"loss":1.0}\n')
    paths.run.write_text(json.dumps(RUN | {"usd_per_hour": 36.0}))
    view = {"written_at": 1000.0, "elapsed_seconds": 100.0, "usd_so_far": 1.0}
    now = current_view.latest(paths, view, until=1900.0)
    assert (now["elapsed_seconds"], now["usd_so_far"]) == (1000.0, 10.0)
    assert (now["steps"], now["loss_last"]) == (51, 0.05)


def test_readers_of_the_recorded_steps_have_each_once(paths: RunPaths) -> None:
    write(paths, PASSES)
    for rank in (None, 0, 1):
        rows = read_metrics(paths, 2, rank)
        assert [row["step"] for row in rows] == list(range(1, 71))
        assert rows[19]["loss"] == 0.02
        assert rows[20]["loss"] == 2.021
    rows = list(export.steps(paths))
    assert [row["tokens"] for row in rows] == [10 * step for step in range(1, 71)]
    (finding,) = (one for one in diagnose_offline(paths) if one.kind == "steps-redone")
    assert "Steps 21 to 60 were done again, 50 steps over 2 times" in finding.evidence
    assert (finding.severity, finding.step) == ("warning", 21)


def test_trackers_get_each_step_once(paths: RunPaths) -> None:
    progress = Progress(tracker="csv", folder="x")
    points = list[int]()
    for number in range(len(PASSES)):
        write(paths, PASSES[: number + 1], first=number)
        batch = Source(paths, RunRecord.of(RUN), progress).read(final=True)
        points += [point.at for point in batch.points if point.axis == "steps"]
    assert points == list(range(1, 71))


def test_a_rank_that_goes_back_alone_does_not_hold_up_the_others(paths: RunPaths) -> None:
    write(paths, [range(1, 51), range(41, 61)], ranks=1)
    with paths.rank_metrics(1).open("w") as file:
        for step in range(1, 61):
            file.write(json.dumps({"step": step, "time": 1000.0 + step, "loss": 0.0}) + "\n")
    rows = MetricStream(paths, 2).read(final=True)
    assert all(before.step < after.step for before, after in pairwise(rows))
    assert rows[-1].step == 60


@pytest.mark.parametrize("step", [70, 65, 55, 45, 41, 40, 30, 21, 20, 5])
def test_a_restart_leaves_rewinds_and_steps_that_agree(paths: RunPaths, step: int) -> None:
    """The supervisor continues from a checkpoint of any step: both files are cut alike."""
    write(paths, PASSES)
    for rank in range(2):
        for path in (paths.rank_metrics(rank), paths.rank_rewinds(rank)):
            cut_after(path, step, path.with_suffix(".lost"))
    with paths.rank_metrics(0).open() as file:
        marks = sum("rewound_from" in line for line in file)
    assert len(read_rewinds(paths)) == marks
    write(paths, [range(step + 1, 81)])
    assert [row["step"] for row in read_metrics(paths, 2)] == list(range(1, 81))
