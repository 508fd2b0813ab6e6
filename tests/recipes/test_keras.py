"""keras_mirrored.py: started and watched like every other script, on two virtual devices."""

from __future__ import annotations

import importlib.util
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

import workbench as wb

SCRIPT = Path(__file__).parents[2] / "workbench" / "recipes" / "keras_mirrored.py"


def test_without_tensorflow_it_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "tensorflow.py").write_text("raise ImportError(name='tensorflow')\n")
    (tmp_path / "keras.py").write_text("raise ImportError(name='keras')\n")
    done = subprocess.run(
        [sys.executable, SCRIPT],
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "pip install tensorflow-cpu keras" in done.stderr


def test_a_batch_that_cannot_be_shared_is_refused_before_tensorflow_is_loaded() -> None:
    done = subprocess.run(
        [sys.executable, SCRIPT, "--batch", "33", "--replicas", "2"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (
        2,
        "keras_mirrored.py: error: --batch 33 is not a multiple of --replicas 2\n",
    )


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("tensorflow") is None,
    reason="pip install 'training-workbench[keras]'",
)
def test_two_mirrored_replicas_are_watched_batch_by_batch(store: Path) -> None:
    run = wb.launch(SCRIPT, ["--steps", "40"], strategy="single", cpu=True, store=store)
    assert run.wait(250) == "succeeded", run.logs(tail=30)
    found = run.summary()
    assert found["steps"] == 40
    assert found["loss_first"] == pytest.approx(math.log(256), rel=0.01)
    assert found["loss_last"] < found["loss_first"] - 1
    said = run.logs(tail=30)
    assert "2 replicas, 40 steps" in said
    lines = [
        json.loads(line)
        for line in (run.directory / "metrics" / "rank-0.jsonl").read_text().splitlines()
    ]
    # The batches' own losses: their mean is what Keras reports for the epoch.
    mean = sum(line["loss"] for line in lines) / len(lines)
    assert f"mean training loss {mean:.3f}" in said
    assert [line["lr"] for line in lines] == pytest.approx([5e-3] * 40)
