"""What a tracker kept of a run, read back with the tracker's own package."""

from __future__ import annotations

import json
import sqlite3
import sys
import types
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from tests.observe.wandb_file import items, records

Series = dict[str, list[tuple[int, float, float]]]  # name -> (step, value, Unix seconds)


@dataclass
class Kept:
    series: Series = field(default_factory=lambda: defaultdict(list))
    notes: list[str] = field(default_factory=list)
    parameters: dict[str, str] = field(default_factory=dict)
    parameter_text: str = ""


def read_tensorboard(folder: Path, run: str) -> Kept:
    # TensorBoard takes the whole of TensorFlow to read files where that is installed, unless told.
    sys.modules.setdefault("tensorboard.compat.notf", types.ModuleType("notf"))
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    kept = Kept()
    for axis in ("steps", "system", "notes"):
        accumulator = EventAccumulator(str(folder / axis), {"scalars": 0, "tensors": 0})
        accumulator.Reload()
        for tag in accumulator.Tags()["scalars"]:
            kept.series[tag] += [(e.step, e.value, e.wall_time) for e in accumulator.Scalars(tag)]
        for tag in accumulator.Tags()["tensors"]:
            texts = [
                event.tensor_proto.string_val[0].decode() for event in accumulator.Tensors(tag)
            ]
            if tag == "run":
                (kept.parameter_text,) = texts
            else:
                kept.notes += texts
    return kept


def read_mlflow(folder: Path, run: str) -> Kept:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{folder}/mlflow.db")
    experiment = client.get_experiment_by_name("workbench")
    (found,) = client.search_runs([experiment.experiment_id])
    kept = Kept(parameters=found.data.params)
    for name in found.data.metrics:
        history = client.get_metric_history(found.info.run_id, name)
        kept.series[name] = sorted((m.step, m.value, m.timestamp / 1000) for m in history)
    kept.notes = [v for k, v in found.data.tags.items() if k.startswith("note-")]
    return kept


def read_trackio(folder: Path, run: str) -> Kept:
    (database,) = folder.glob("*.db")
    connection = sqlite3.connect(database)
    kept = Kept()
    query = "SELECT step, timestamp, metrics FROM metrics WHERE run_name = ? ORDER BY step, id"
    for step, at, text in connection.execute(query, [run]):
        for name, value in json.loads(text).items():
            kept.series[name].append((step, value, datetime.fromisoformat(at).timestamp()))
    query = "SELECT timestamp, metrics FROM system_metrics WHERE run_name = ? ORDER BY id"
    for number, (at, text) in enumerate(connection.execute(query, [run]), start=1):
        for name, value in json.loads(text).items():
            point = (number, value, datetime.fromisoformat(at).timestamp())
            kept.series[f"system/{name}"].append(point)
    query = "SELECT level, title, text FROM alerts WHERE run_name = ? ORDER BY id"
    kept.notes = [": ".join(map(str, row)) for row in connection.execute(query, [run])]
    ((config,),) = connection.execute("SELECT config FROM configs WHERE run_name = ?", [run])
    kept.parameters = json.loads(config)
    connection.close()
    return kept


def read_wandb(folder: Path, run: str) -> Kept:
    (path,) = (folder / "wandb").glob("offline-run-*/*.wandb")
    kept, sample = Kept(), 0
    for kind, record in records(path):
        if kind == "run":
            kept.parameters = items(record.config.update)
        if kind == "alert":
            kept.notes.append(f"{record.title}: {record.text}")
        if kind == "history":
            row = items(record.item)
            sample += "seconds" in row
            step = row.pop("step", sample)
            at = row.pop("_timestamp")
            for name, value in row.items():
                if name != "seconds" and not name.startswith("_"):
                    kept.series[name].append((step, value, at))
    return kept


READERS: dict[str, Any] = {
    "tensorboard": read_tensorboard,
    "mlflow": read_mlflow,
    "trackio": read_trackio,
    "wandb": read_wandb,
}
