"""What a tracker is fed from the run's files."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from workbench.observe.trackers import points
from workbench.observe.trackers.mlflow import MLflow
from workbench.observe.trackers.progress import Progress
from workbench.observe.trackers.sink import Sink
from workbench.observe.trackers.source import Source
from workbench.observe.trackers.tensorboard import TensorBoard
from workbench.observe.trackers.trackio import Trackio
from workbench.observe.trackers.wandb import WandB
from workbench.store.layout import RunPaths
from workbench.store.run_record import RunRecord


def write(paths: RunPaths, rank: int, *losses: float) -> None:
    with paths.rank_metrics(rank).open("a") as file:
        for step, loss in enumerate(losses, 1):
            file.write(json.dumps({"step": step, "time": 1000.0 + step, "loss": loss}) + "\n")


def test_ranks_that_a_script_starts_later_are_followed(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    paths.make_folders()
    source = Source(paths, RunRecord(processes=1), Progress(tracker="t", folder="f"))
    assert source.read().points == []
    write(paths, 0, 1.0, 1.0)
    write(paths, 1, 3.0, 3.0)
    found = [point for point in source.read(final=True).points if "loss" in str(point)]
    assert [point.values["loss"] for point in found] == [2.0, 2.0]


@pytest.mark.parametrize("tracker", [TensorBoard, MLflow, Trackio, WandB])
def test_the_command_that_shows_it_can_be_pasted(tracker: type[Sink], tmp_path: Path) -> None:
    """Of a folder with a space in its name the shell made two words."""
    sink = tracker(tmp_path / "my runs", points.about(RunRecord(), "r"))
    sink.__dict__["_id"] = "r"
    words = shlex.split(sink.look())
    assert any(str(tmp_path / "my runs") in word for word in words)
