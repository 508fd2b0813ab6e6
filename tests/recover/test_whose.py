"""Two runs of one script in one folder: neither is given what the other has saved."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.recover.saved import BEGAN, run_of_script, saved
from workbench.errors import UsageError
from workbench.launching.resume.branch import _start
from workbench.launching.resume.starting_point import starting_point
from workbench.recover.checkpoints import newest_intact
from workbench.recover.script_checkpoints import EXPORTED, every_checkpoint
from workbench.recover.whose import step_at
from workbench.store.layout import RunPaths
from workbench.trained_model.source import trained_model


def steps(run: RunPaths) -> dict[int | None, str]:
    return {one.step: one.doubt for one in every_checkpoint(run)}


def test_folders_that_the_arguments_name_tell_two_runs_apart(tmp_path: Path) -> None:
    first = run_of_script(tmp_path, "a", ["--out", "trial_a"], (0, 100))
    second = run_of_script(tmp_path, "b", ["--out=trial_b"], (50, 300))
    none = run_of_script(tmp_path, "c", ["--out", "trial_c"], (60, 90))
    saved(tmp_path / "trial_a/ckpt_30.pt", 30, 40)
    saved(tmp_path / "trial_b/ckpt_60.pt", 60, 80)  # while all three were at work
    assert steps(first) == {30: ""}
    assert steps(second) == {60: ""}
    chosen = starting_point(first, None).at
    assert chosen is not None
    assert chosen.path == tmp_path / "trial_a/ckpt_30.pt"
    assert _start(first, None).at == chosen
    assert trained_model(first).checkpoint.path == chosen.path
    assert starting_point(none, None).at is None


def test_times_tell_runs_apart_that_save_in_the_same_folder(tmp_path: Path) -> None:
    first = run_of_script(tmp_path, "a", [], (0, 100), (500, 600))
    second = run_of_script(tmp_path, "b", ["--out", "out"], (200, 300))
    saved(tmp_path / "out/ckpt_30.pt", 30, 40)
    saved(tmp_path / "out/ckpt_60.pt", 60, 250)
    saved(tmp_path / "out/ckpt_40.pt", 40, 550)
    assert steps(first) == {30: "", 40: ""}
    assert steps(second) == {60: "", 40: "a was running in the same folder when it was written"}
    point = starting_point(second, None)
    assert point.at is not None
    assert point.at.step == 60
    assert point.notes == ()


def test_what_may_be_of_either_run_is_taken_only_when_named(tmp_path: Path) -> None:
    first = run_of_script(tmp_path, "a", [], (0, 100))
    run_of_script(tmp_path, "b", [], (50, 300))
    own = saved(tmp_path / "out/ckpt_10.pt", 10, 30)
    either = saved(tmp_path / "out/ckpt_20.pt", 20, 80)
    doubt = "b was running in the same folder when it was written"
    assert steps(first) == {20: doubt, 10: ""}
    point = starting_point(first, None)
    assert point.at is not None
    assert point.at.path == own
    assert f"{either} (step 20) is not taken unless it is named: {doubt}." in point.notes[0]
    named = starting_point(first, str(either)).at
    assert named is not None
    assert named.step == 20
    own.unlink()
    assert newest_intact(first, every_checkpoint(first)) == (None, [])
    with pytest.raises(UsageError, match=r"surely one of a.*--checkpoint none"):
        starting_point(first, None)
    with pytest.raises(UsageError, match="no whole checkpoint"):
        trained_model(first)


def test_a_model_that_was_exported_is_no_checkpoint(tmp_path: Path) -> None:
    """It lies where the script works, of another run perhaps, and is newer than what is saved."""
    run = run_of_script(tmp_path, "a", [], (0, 100))
    own = saved(tmp_path / "out/ckpt_10.pt", 10, 30)
    model = saved(tmp_path / "b-step-90/model.safetensors", 90, 60).parent
    about = json.dumps({"w": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}).encode()
    (model / "model.safetensors").write_bytes(len(about).to_bytes(8, "little") + about + b"x")
    (model / "config.json").write_text('{"model_type": "llama"}')
    for file in model.iterdir():
        os.utime(file, (BEGAN + 60, BEGAN + 60))
    assert trained_model(run).checkpoint.path == model
    (model / EXPORTED).write_text("{}")
    assert steps(run) == {10: ""}
    assert trained_model(run).checkpoint.path == own
    assert trained_model(run, str(model)).checkpoint.path == model  # where it is named


def test_steps_tell_runs_apart_that_train_at_the_same_time(tmp_path: Path) -> None:
    """Two scripts, or seeds, that save below the same working directory."""
    first = run_of_script(tmp_path, "a", [], (0, 1000))
    second = run_of_script(tmp_path, "b", [], (0, 1000))
    for run, each in ((first, 1.0), (second, 4.0)):  # seconds per step
        with run.rank_metrics(0).open("w") as file:
            for step in range(1, int(900 / each)):
                file.write(json.dumps({"step": step, "time": BEGAN + step * each}) + "\n")
    assert [step_at(first, BEGAN + at) for at in (0.5, 1, 77.5, 5000)] == [None, 1, 77, 899]
    saved(tmp_path / "seed-1/ckpt.pt", 400, 400.5)  # b had done 100
    saved(tmp_path / "seed-2/ckpt.pt", 100, 401.5)  # a had done 401
    saved(tmp_path / "early/ckpt.pt", 8, 9)  # too near to tell
    doubt = "{} was running in the same folder when it was written"
    assert steps(first) == {400: "", 100: doubt.format("b"), 8: doubt.format("b")}
    assert steps(second) == {100: "", 400: doubt.format("a"), 8: doubt.format("a")}
    chosen = starting_point(first, None).at
    assert chosen is not None
    assert chosen.step == 400


def test_a_run_that_begins_at_anothers_checkpoint_does_not_take_it(tmp_path: Path) -> None:
    """Its arguments name the file, which the other run writes again and again."""
    last = saved(tmp_path / "out/last.pt", 70, 80)
    first = run_of_script(tmp_path, "a", ["--out", "out"], (0, 100))
    origin = {"run": "a", "checkpoint": str(last), "step": 50}
    words = ["--out", "new", "--resume", str(last)]
    run_of_script(tmp_path, "f", words, (60, 100), resumed_from=origin)
    assert steps(first) == {70: ""}


def test_a_folder_that_the_arguments_name_goes_before_the_working_directory(tmp_path: Path) -> None:
    run = run_of_script(tmp_path, "a", ["--out", "mine"], (0, 100))
    saved(tmp_path / "mine/ckpt_10.pt", 10, 30)
    saved(tmp_path / "other/ckpt_99.pt", 99, 50)  # of a script that was started by hand
    assert steps(run)[10] == ""
    assert "name another folder" in steps(run)[99]
