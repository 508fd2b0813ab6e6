"""Which disks a run writes to, and what they have left."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from workbench.observe import disks
from workbench.observe.disks import OtherDisks, first_shortage, other_disks, written_folders
from workbench.store.layout import RunPaths
from workbench.store.run_record import RunRecord

NOWHERE = {"HOME": "/home/her", "TMPDIR": "/scratch"}


def folders(*arguments: str, here: str = "/work", **environment: str) -> list[str]:
    run = RunRecord(arguments=list(arguments), working_directory=here)
    return [str(folder) for folder in written_folders(run, NOWHERE | environment)]


def test_where_programs_usually_write() -> None:
    assert folders() == ["/work", "/scratch", "/home/her/.cache/huggingface"]
    assert "/data/hub" in folders(HF_HOME="/data/hub")
    assert "/data/only" in folders(HF_HOME="/data/hub", HF_HUB_CACHE="/data/only")


@pytest.mark.parametrize(
    "arguments",
    [
        ("--output_dir", "/out/a"),
        ("--output-dir=/out/a",),
        ("--lr", "1", "--save_dir", "/out/a", "--steps", "5"),
        ("--checkpoint-dir", "../out/a"),
        ("--logging_dir=../out/a",),
        ("--default_root_dir", "../work/../out/a"),
        ("-out", "/out/a"),
        ("--log_path", "/out/a"),
    ],
)
def test_folders_that_arguments_name(arguments: tuple[str, ...]) -> None:
    (given,) = [one for one in folders(*arguments) if "out" in one]
    assert os.path.normpath(given) == "/out/a"


@pytest.mark.parametrize(
    "arguments",
    [
        ("--log_level", "info"),
        ("--save_steps", "/500"),
        ("--output_dir", "s3://bucket/a"),
        ("--output_dir", "--lr"),
        ("--output_dir",),
        ("--train_file", "/data/a.jsonl"),
        ("/out/a",),
    ],
)
def test_what_names_no_folder_to_write_to(arguments: tuple[str, ...]) -> None:
    assert folders(*arguments) == folders()


def test_what_was_given_for_the_run_counts_more() -> None:
    run = RunRecord(working_directory="/w", extra_environment={"TMPDIR": "/t", "HF_HOME": "~/h"})
    places = [str(folder) for folder in written_folders(run, NOWHERE)]
    assert places == ["/w", "/t", "/home/her/h"]


def test_a_disk_of_its_own_is_told_once(tmp_path: Path) -> None:
    """/dev/shm is a file system of its own on every Linux; its folders need not be there."""
    shared = Path("/dev/shm")
    told = other_disks(tmp_path, [tmp_path / "not" / "there", shared / "a" / "b", shared])
    assert [disk["path"] for disk in told] == [str(shared / "a" / "b")]
    assert 0 <= told[0]["free_bytes"] <= told[0]["total_bytes"]


def test_what_cannot_be_written_to_is_no_disk_of_the_run(tmp_path: Path) -> None:
    assert other_disks(tmp_path, [Path("/proc/sys"), Path("/proc")]) == []


def test_a_disk_that_does_not_answer_holds_nothing_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Path] = []
    answers = threading.Event()

    def hangs(folder: Path) -> os.statvfs_result:
        asked.append(folder)
        answers.wait(60)
        raise OSError

    monkeypatch.setattr(disks, "os", SimpleNamespace(statvfs=hangs, environ={}))
    monkeypatch.setattr(disks, "_ANSWER_SECONDS", 0.05)
    monkeypatch.setattr(disks, "_PAUSE_SECONDS", 0.0)
    watch = OtherDisks(RunRecord(working_directory="/"), tmp_path)
    assert [watch.sample() for _ in range(3)] == [[], [], []]
    assert len(asked) == 1
    answers.set()


def test_what_a_disk_lacks_at_the_end_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = RunPaths(tmp_path)
    assert first_shortage(paths) == ""
    paths.run.write_text('{"run": "a", "arguments": ["--output_dir", "/full/out"]}')

    def lacks(folder: Path) -> str:
        return f"no room in {folder}" if folder == Path("/full/out") else ""

    monkeypatch.setattr(disks, "shortage", lacks)
    assert first_shortage(paths) == "no room in /full/out"
