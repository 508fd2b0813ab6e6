"""Checkpoints of other libraries, made by these libraries: known by content, their real step read.

The folders' names lie on purpose.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from tests.cpu_budget import least_seconds, over_budget
from tests.launch.ranks import output
from workbench.launching.resume.starting_point import starting_point
from workbench.recover.checkpoints import verify
from workbench.recover.foreign import IdentifiedCheckpoint, identify
from workbench.recover.pickled import MAX_PICKLE_BYTES, UNREADABLE, read_saved
from workbench.recover.script_checkpoints import (
    every_checkpoint,
    named_checkpoint,
    script_checkpoints,
)
from workbench.store.layout import RunPaths

MAKE = Path(__file__).with_name("make_checkpoints.py")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What torch, torch.distributed.checkpoint and Accelerate write, all by one process."""
    folder = tmp_path_factory.mktemp("made")
    output(MAKE, folder)
    return folder


@pytest.mark.parametrize(
    ("name", "kind", "step"),
    [
        ("run_2026-11-22_16.26.07.pt", "torch", 7),  # the optimizer's own count
        ("ckpt.pt", "torch", 12),  # iter_num, not the step in its config
        ("legacy-99.pt", "torch", 5),
        ("weights-100.pt", "torch", None),
        ("epochs-100.pt", "torch", None),
        ("folder-88", "torch", 7),
        ("best-and-last", "torch", 7),
        ("epoch=1-step=99.ckpt", "lightning", 20),
        ("sharded-lightning.ckpt", "lightning", 21),
        ("dcp-500", "dcp", 7),
        ("dcp-counter", "dcp", 9),
        ("save_state-77", "accelerate", 4),
        ("checkpoint-999", "trainer", 6),
        ("global_step999", "deepspeed", 15),
        ("deepspeed-1000", "deepspeed", 15),
    ],
)
def test_kind_and_step_are_read_from_the_content(
    made: Path, name: str, kind: str, step: int | None
) -> None:
    found = identify(made / name)
    assert found is not None
    assert (found.kind, found.step, found.problem) == (kind, step, "")


@pytest.fixture(scope="module")
def of_deepspeed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What DeepSpeed's own engine writes: without ZeRO, and with its three stages."""
    pytest.importorskip("deepspeed", reason="pip install 'training-workbench[deepspeed]'")
    folder = tmp_path_factory.mktemp("deepspeed")
    make = MAKE.with_name("make_deepspeed.py")
    subprocess.run([sys.executable, str(make), str(folder)], check=True, capture_output=True)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("plain", 3),
        ("plain/global_step999", 3),
        ("zero1", 5),  # the latest of two
        ("zero1/global_step999", 3),
        ("zero2-bf16", 3),
        ("zero3-bf16", 3),
    ],
)
def test_what_deepspeeds_engine_writes_is_known(of_deepspeed: Path, name: str, step: int) -> None:
    assert identify(of_deepspeed / name) == IdentifiedCheckpoint(
        kind="deepspeed", step=step, world_size=1
    )


@pytest.mark.slow
def test_deepspeeds_files_are_read_or_called_unreadable(of_deepspeed: Path, tmp_path: Path) -> None:
    for made in of_deepspeed.glob("*/global_step999/*.pt"):
        assert read_saved(made).value, made
    broken = tmp_path / "broken"
    shutil.copytree(of_deepspeed / "zero3-bf16", broken)
    (states,) = broken.rglob("*_model_states.pt")
    os.truncate(states, states.stat().st_size // 2)
    assert "cannot be read" in getattr(identify(broken), "problem", "")
    shutil.rmtree(broken / "global_step999")
    assert "is not there" in getattr(identify(broken), "problem", "")


def test_what_is_missing_is_said(made: Path, tmp_path: Path) -> None:
    cut, torn = tmp_path / "cut", tmp_path / "torn"
    shutil.copytree(made / "dcp-500", cut)
    (shard,) = cut.glob("*.distcp")
    os.truncate(shard, shard.stat().st_size - 1)
    assert "cut short" in getattr(identify(cut), "problem", "")
    shutil.copytree(cut, torn)
    (torn / ".metadata").unlink()
    assert "being written" in getattr(identify(torn), "problem", "")
    zero = tmp_path / "zero"
    shutil.copytree(made / "global_step999", zero)
    next(zero.glob("*_optim_states.pt")).unlink()
    assert getattr(identify(zero), "problem", "").startswith("1 of 2 files of optimizer")
    (zero / "mp_rank_00_model_states.pt").rename(zero / "zero_pp_rank_0_mp_rank_00_model_states.pt")
    problem = getattr(identify(zero), "problem", "")  # of ZeRO-3 now
    assert problem == (
        "1 of 2 files of optimizer states are missing, 1 of 2 files of weights are missing"
    )


def test_nothing_of_a_file_is_run(tmp_path: Path) -> None:
    canary = tmp_path / "canary"

    class Evil:
        def __reduce__(self) -> tuple[object, ...]:
            return os.system, (f"touch {canary}",)

    evil = pickle.dumps({"step": 3, "model": Evil()})
    (tmp_path / "plain.pt").write_bytes(evil)
    with zipfile.ZipFile(tmp_path / "zip.pt", "w") as archive:
        archive.writestr("archive/data.pkl", evil)
    for name in ("plain.pt", "zip.pt"):
        found = identify(tmp_path / name)
        assert found is not None
        assert found.step == 3
    assert not canary.exists()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"PK\3\4 no archive",
        b"\x80\x02" + b"(" * 100,
        b"\x80\x02N0N.",
        b"\x80\x04\x8e" + (1 << 62).to_bytes(8, "little") + b"x",  # BINBYTES8, far too long
        b"\x80\x02]r\xff\xff\xff\x7f.",  # a memo of two thousand million places
        b"\x80\x02}" + b"K\x01K\x02s" * 700_000 + b".",
    ],
    ids=["empty", "zip", "marks", "popped", "length", "memo", "long"],
)
def test_damaged_and_hostile_files_cost_little(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    path.write_bytes(data)

    def read() -> None:
        with contextlib.suppress(*UNREADABLE):
            read_saved(path)

    assert not over_budget(least_seconds(read, times=1), 5)
    found = identify(path)
    assert found is None or found.step is None


def test_huge_files_are_opened_at_their_tables_only(tmp_path: Path) -> None:
    folder = tmp_path / "big"
    folder.mkdir()
    with (folder / "model.pt").open("wb") as file:  # a sparse file of a terabyte
        pickle.dump({"global_step": 8}, file)
        file.truncate(1 << 40)
    assert getattr(identify(folder), "step", None) == 8
    with zipfile.ZipFile(folder / "model.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/data.pkl", b"N" * (MAX_PICKLE_BYTES + 1))  # a bomb
    assert "cannot be read" in getattr(identify(folder / "model.pt"), "problem", "")


@pytest.fixture
def run(tmp_path: Path) -> RunPaths:
    paths = RunPaths(tmp_path / "runs" / "a")
    paths.directory.mkdir(parents=True)
    paths.make_folders()
    work = tmp_path / "work"
    work.mkdir()
    document = {
        "run": "a",
        "created_at": time.time() - 5,
        "working_directory": str(work),
        "arguments": ["--out", "results", f"--save={tmp_path / 'elsewhere'}", ".."],
    }
    paths.run.write_text(json.dumps(document))
    return paths


def test_what_the_script_wrote_is_listed_wherever_its_arguments_point(
    made: Path, run: RunPaths, tmp_path: Path
) -> None:
    shutil.copytree(made / "dcp-500", tmp_path / "work/results/d")
    (tmp_path / "elsewhere").mkdir()
    shutil.copyfile(made / "ckpt.pt", tmp_path / "elsewhere/ckpt.pt")
    for path in (tmp_path / "work").rglob("*"):
        os.utime(path)
    old = tmp_path / "work/old.pt"
    shutil.copyfile(made / "ckpt.pt", old)
    os.utime(old, (0, 0))  # was there before the run
    shutil.copyfile(made / "ckpt.pt", tmp_path / "above.pt")  # ".." is not where it saves
    found = every_checkpoint(run)
    assert [(one.name, one.kind, one.step, one.by_script) for one in found] == [
        ("ckpt.pt", "torch", 12, True),
        ("d", "dcp", 7, True),
    ]
    assert not any(verify(one) for one in found)


@pytest.mark.parametrize(
    ("folder", "listed"),
    [
        ("folder-88", {"folder-88": 7}),  # parts that complete each other
        ("best-and-last", {"best.pt": 3, "last.pt": 7}),
        ("best-weights", {"best.pt": None, "last.pt": 7}),
        ("whole-and-rng", {"whole-and-rng": 7}),
    ],
)
def test_files_of_their_own_are_told_from_parts(
    made: Path, run: RunPaths, tmp_path: Path, folder: str, listed: dict[str, int | None]
) -> None:
    shutil.copytree(made / folder, tmp_path / "work/checkpoints" / folder)
    for path in (tmp_path / "work").rglob("*"):
        os.utime(path)
    assert {one.name: one.step for one in every_checkpoint(run)} == listed


def test_a_file_that_is_being_written_leaves_the_others_beside_it(
    made: Path, run: RunPaths, tmp_path: Path
) -> None:
    place = tmp_path / "work/checkpoints"
    shutil.copytree(made / "best-and-last", place)
    os.truncate(place / "last.pt", 900)
    for path in place.iterdir():
        os.utime(path)
    chosen = starting_point(run, None)
    assert chosen.at is not None
    assert (chosen.at.name, chosen.at.step) == ("best.pt", 3)


def test_a_manifest_of_something_else_is_no_checkpoint(run: RunPaths, tmp_path: Path) -> None:
    """Of a web page, and of a copy that `workbench push` made below the working directory."""
    for name, text in (("page", '{"name": "x"}'), ("backup", '{"files": {}, "run": "a"}')):
        (tmp_path / "work" / name).mkdir()
        (tmp_path / "work" / name / "manifest.json").write_text(text)
    assert every_checkpoint(run) == []
    assert starting_point(run, None).at is None


def test_a_named_folder_of_unknown_content_has_no_step(run: RunPaths, tmp_path: Path) -> None:
    folder = tmp_path / "run_2026-11-22_16.26.07"
    folder.mkdir()
    (folder / "weights.npz").write_bytes(b"x")
    assert (named_checkpoint(folder).step, named_checkpoint(folder).problem) == (None, "")
    assert not script_checkpoints(run)


def test_a_final_model_is_known_and_the_one_that_training_starts_from_is_none(
    run: RunPaths, tmp_path: Path
) -> None:
    """What `save_pretrained` writes: weights alone, which hold no step."""
    for place in (run.checkpoints / "adapter", tmp_path / "work/out/model", tmp_path / "work"):
        name = "adapter_" if place.name == "adapter" else ""
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{name}config.json").write_text("{}")
        (place / f"{name}model.safetensors").write_bytes(b"weights")
    found = {one.path: (one.kind, one.step, one.problem) for one in every_checkpoint(run)}
    whole = ("pretrained", None, "")
    assert found == {
        run.checkpoints / "adapter": whole,
        tmp_path / "work/out/model": whole,
    }
    assert starting_point(run, None).at is None  # nothing in them to continue from
    shards = tmp_path / "shards"
    shards.mkdir()
    (shards / "config.json").write_text("{}")
    index = {"weight_map": {"a": "model-1-of-2.safetensors", "b": "model-2-of-2.safetensors"}}
    (shards / "model.safetensors.index.json").write_text(json.dumps(index))
    (shards / "model-1-of-2.safetensors").write_bytes(b"weights")
    about = identify(shards)
    assert about is not None
    assert about.problem == "model-2-of-2.safetensors is missing"
