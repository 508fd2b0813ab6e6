"""Runs of one plain script as they are on the disk, with the checkpoints that it saved."""

from __future__ import annotations

import json
import os
import pickle
import sys
import zipfile
from pathlib import Path
from typing import Any

from workbench.store.layout import RunPaths

BEGAN = 1.7e9
SCRIPT = """import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--resume", type=str)
parser.add_argument("--out", type=str)
"""


def run_of_script(
    work: Path,
    run: str,
    arguments: list[str],
    *attempts: tuple[float, float | None],
    outcome: str | None = "failed",
    **about: Any,
) -> RunPaths:
    """A run in the store `work`/runs; `attempts`: begin and end, in seconds after BEGAN."""
    paths = RunPaths(work / "runs" / run)
    paths.directory.mkdir(parents=True)
    paths.make_folders()
    script = work / "train.py"
    script.write_text(SCRIPT)
    document: dict[str, Any] = {
        "run": run,
        "created_at": BEGAN + attempts[0][0],
        "script": str(script),
        "arguments": arguments,
        "working_directory": str(work),
        "environment": {},
        "command": [sys.executable, str(script), *arguments],
        "layout_arguments": [],
    }
    paths.run.write_text(json.dumps(document | about))
    with paths.attempts.open("w") as file:
        for number, (begun, ended) in enumerate(attempts, 1):
            start = {"attempt": number, "event": "start", "time": BEGAN + begun, "why": None}
            file.write(json.dumps(start) + "\n")
            if ended is not None:
                end = {"attempt": number, "event": "end", "time": BEGAN + ended}
                file.write(json.dumps(end) + "\n")
    if outcome is not None:
        ended_at = BEGAN + (attempts[-1][1] or 0.0)
        paths.exit.write_text(json.dumps({"outcome": outcome, "ended_at": ended_at}))
    return paths


def saved(path: Path, step: int | None, at: float, *, optimizer: bool = True) -> Path:
    """What `torch.save` writes of a model, its optimizer and its step, as far as a table goes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    state: dict[str, Any] = {"model": {"weight": 1.0}}
    if optimizer:
        state["optimizer"] = {"state": {}, "param_groups": [{"lr": 0.1, "params": [0]}]}
    if step is not None:
        state["step"] = step
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(state, protocol=2))
        archive.writestr("archive/version", "3\n")
    os.utime(path, (BEGAN + at, BEGAN + at))
    return path
