"""Checkpoint folders and their manifests: whole, or not there, or found out."""

from __future__ import annotations

import json
import os
import struct
import time
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conftest import until
from tests.security.users import reachable
from workbench.recipes import checkpoint_files
from workbench.recover import contents
from workbench.recover.checkpoints import list_checkpoints, newest_intact, verify
from workbench.recover.sealing import Sealer
from workbench.store.layout import RunPaths


def write(folder: Path, step: int, size: int = 3000) -> Path:
    """A sealed checkpoint of two files."""
    partial = folder / f"partial-{step:08d}"
    (partial / "inner").mkdir(parents=True)
    (partial / "model.bin").write_bytes(os.urandom(size))
    (partial / "inner" / "random.bin").write_bytes(b"r" * 100)
    checkpoint_files.seal(partial, step=step, kind="recipe", loss=2.5, world_size=2, strategy=None)
    final = folder / f"step-{step:08d}"
    checkpoint_files.publish(partial, final)
    return final


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    paths = RunPaths(tmp_path / "run")
    paths.directory.mkdir()
    paths.make_folders()
    return paths


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


DAMAGES = {
    "cut": (lambda c: os.truncate(c / "model.bin", 1000), "1,000 bytes instead of 3,000", False),
    "flipped": (lambda c: flip(c / "model.bin"), "SHA-256 differs", True),
    "missing": (lambda c: (c / "inner" / "random.bin").unlink(), "random.bin is missing", False),
    "no manifest": (lambda c: (c / "manifest.json").unlink(), "manifest.json is missing", False),
    "torn manifest": (lambda c: os.truncate(c / "manifest.json", 50), "cannot be read", False),
    "link": (
        lambda c: (
            (c / "inner" / "random.bin").unlink(),
            (c / "inner" / "random.bin").symlink_to("/etc/passwd"),
        ),
        "random.bin is missing",
        False,
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_every_damage_is_named_and_the_one_before_is_chosen(tmp_path, damage):
    older, newest = write(tmp_path, 10), write(tmp_path, 20)
    assert checkpoint_files.newest_complete(tmp_path) == (newest, [])
    harm, said, only_by_reading = DAMAGES[damage]
    harm(newest)
    assert said in checkpoint_files.why_broken(newest)
    assert (newest in checkpoint_files.complete_in(tmp_path)) is only_by_reading
    chosen, passed = checkpoint_files.newest_complete(tmp_path)
    assert chosen == older
    assert len(passed) == 1
    assert "step-00000020 is skipped" in passed[0]
    assert said in passed[0]


@pytest.mark.parametrize(
    "files",
    [
        {"../../outside": {"bytes": 1, "sha256": "0"}},
        {"/etc/passwd": {"bytes": 1, "sha256": "0"}},
        {"model.bin": {"bytes": True, "sha256": "0"}},
        {"model.bin": 3},
        {"model.bin": {"bytes": 1}},
        {"a\0b": {"bytes": 1, "sha256": "0"}},
        ["model.bin"],
        None,
    ],
)
def test_a_manifest_of_another_form_is_a_broken_checkpoint(tmp_path, files):
    folder = write(tmp_path, 3)
    document = json.loads((folder / "manifest.json").read_text()) | {"files": files}
    (folder / "manifest.json").write_text(json.dumps(document))
    assert checkpoint_files.why_broken(folder)
    assert checkpoint_files.newest_complete(tmp_path)[0] is None


def test_manifest_says_what_it_is_and_a_name_is_replaced(tmp_path):
    write(tmp_path, 5)
    folder = write(tmp_path, 5, size=7)
    manifest = checkpoint_files.manifest_of(folder)
    assert manifest is not None
    assert (manifest["step"], manifest["total_bytes"], manifest["loss"]) == (5, 107, 2.5)
    assert manifest["files"]["model.bin"]["bytes"] == 7
    assert sorted(manifest["files"]) == ["inner/random.bin", "model.bin"]
    assert os.listdir(tmp_path) == ["step-00000005"]
    (tmp_path / "partial-00000009").mkdir()
    (tmp_path / "step-x").mkdir()
    assert checkpoint_files.named(tmp_path) == [folder]
    assert checkpoint_files.complete_in(tmp_path / "nowhere") == []


def test_files_open_to_all_count_where_no_one_else_gets_to_them(paths):
    """As a training under umask 000 writes them, which some containers have."""
    folder = write(paths.checkpoints, 10)
    file = paths.checkpoints / "lightning.ckpt"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("lightning/data.pkl", b"x")
    for path in (folder, *folder.rglob("*"), file):
        path.chmod(0o777)
    alone = replace(list_checkpoints(paths)[0], path=file, manifest=None)
    assert verify(list_checkpoints(paths)[0]) == ""
    assert "others can write" not in verify(alone)
    reachable(paths.directory.parent)
    for path in (paths.directory, paths.checkpoints):
        path.chmod(0o755)
    assert "everybody can write to" in verify(list_checkpoints(paths)[0])
    assert "others can write to it" in verify(alone)


def test_the_runs_checkpoints_are_listed_cheaply_and_verified_by_reading(paths):
    write(paths.checkpoints, 10)
    newest = write(paths.checkpoints, 20)
    listed = list_checkpoints(paths)
    assert [one.step for one in listed] == [20, 10]
    assert (listed[0].bytes, listed[0].kind, listed[0].loss) == (3100, "recipe", 2.5)
    assert all(one.sealed and not one.problem for one in listed)
    assert verify(listed[0]) == ""
    json.dumps(listed[0].document(), allow_nan=False)
    flip(newest / "model.bin")
    assert list_checkpoints(paths)[0].problem == ""  # sizes alone cannot tell
    assert "SHA-256" in verify(list_checkpoints(paths)[0])
    chosen, passed = newest_intact(paths)
    assert chosen is not None
    assert chosen.step == 10
    assert "step-00000020 is skipped" in passed[0]
    os.truncate(newest / "model.bin", 5)
    assert "5 bytes instead of 3,000" in list_checkpoints(paths)[0].problem


def reported(paths: RunPaths, folder: Path, step: int, time: float = 1.0) -> None:
    line = {"time": time, "step": step, "path": str(folder), "kind": "trainer", "world_size": 2}
    with paths.saved.open("a") as file:
        file.write(json.dumps(line) + "\n")


def trainers(folder: Path) -> Path:
    """Files as transformers writes them, by their formats alone."""
    folder.mkdir(parents=True, exist_ok=True)
    table = json.dumps({"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}).encode()
    data = struct.pack("<Q", len(table)) + table + bytes(16)
    (folder / "model.safetensors").write_bytes(data)
    with zipfile.ZipFile(folder / "optimizer.pt", "w") as archive:
        archive.writestr("archive/data/0", os.urandom(5000))
    (folder / "trainer_state.json").write_text('{"global_step": 30}')
    return folder


def test_a_scripts_own_checkpoint_is_sealed_and_then_held_to_it(paths, tmp_path):
    folder = trainers(tmp_path / "out" / "checkpoint-30")
    reported(paths, folder, 30)
    reported(paths, tmp_path / "out" / "checkpoint-20", 20)  # deleted by save_total_limit
    (before,) = list_checkpoints(paths)
    assert (before.sealed, before.step, before.kind, before.world_size) == (False, 30, "trainer", 2)
    sealer = Sealer(paths, print)
    sealer.start()
    assert sealer.look() == [before]
    sealer.stop()
    (after,) = list_checkpoints(paths)
    assert after.sealed
    assert verify(after) == ""
    assert sorted(os.listdir(folder)) == ["model.safetensors", "optimizer.pt", "trainer_state.json"]
    flip(folder / "model.safetensors")
    assert "model.safetensors does not have the content that was saved" in verify(after)
    reported(paths, folder, 40, time=2.0)  # written again: the old hashes do not count
    assert not list_checkpoints(paths)[0].sealed


def test_what_a_script_saves_unseen_is_known_while_it_runs(paths, tmp_path_factory):
    work = tmp_path_factory.mktemp("work")  # not in the store, where no script saves
    record = {"run": paths.directory.name, "working_directory": str(work), "created_at": 1.0}
    paths.run.write_text(json.dumps(record))
    paths.exit.write_text(json.dumps({"ended_at": time.time() + 3600}))  # at work till then
    torch = pytest.importorskip("torch")
    for step in (20, 40):
        state = {"step": step, "model": {"w": torch.zeros(3)}, "optimizer": {"state": {}}}
        torch.save(state, work / f"step_{step}.pt")
    (work / "step_60.pt").write_bytes((work / "step_40.pt").read_bytes()[:-90])  # being written
    known = {searches: Sealer(paths, print, searches=searches, search_seconds=0.01)
             for searches in (True, False)}  # fmt: skip
    for sealer in known.values():
        sealer.start()
    until(lambda: [saved.step for saved in known[True].look()] == [40, 20], 20)
    assert known[False].look() == []
    for sealer in known.values():
        sealer.stop()
    assert not any(saved.sealed for saved in known[True].look())  # its files are not read


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda f: os.truncate(f / "optimizer.pt", 1000), "optimizer.pt cannot be read"),
        (lambda f: flip(f / "optimizer.pt"), "optimizer.pt is damaged"),
        (lambda f: os.truncate(f / "model.safetensors", 60), "model.safetensors is cut short"),
        (lambda f: os.truncate(f / "model.safetensors", 80), "bytes instead of"),
        (lambda f: os.truncate(f / "trainer_state.json", 9), "trainer_state.json cannot be read"),
        (lambda f: (f / "checkpoint-is-incomplete.txt").touch(), "was being written"),
    ],
)
def test_damage_is_seen_without_hashes_too(paths, tmp_path, harm, said):
    older, folder = (trainers(tmp_path / f"checkpoint-{step}") for step in (20, 30))
    reported(paths, older, 20)
    reported(paths, folder, 30)
    assert contents.why_broken(folder) == ""
    harm(folder)
    chosen, passed = newest_intact(paths)
    assert chosen is not None
    assert chosen.step == 20
    assert said in passed[0]


def test_malformed_lines_about_checkpoints_are_passed_over(paths, tmp_path):
    paths.saved.write_text(
        '{"path": 3}\n{"path": "relative"}\n[1]\n{"step": "x", "path": "/nowhere"}\n{"path": "/a\\u0000"}\n'
    )
    assert list_checkpoints(paths) == []
    reported(paths, trainers(tmp_path / "checkpoint-1"), 10**18)
    assert newest_intact(paths)[0] is not None
