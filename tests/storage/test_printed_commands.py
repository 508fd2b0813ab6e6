"""The commands that are printed of a pushed run can be typed as they stand."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.cli.conftest import Command, command
from workbench.cli import recovery
from workbench.errors import UsageError
from workbench.launching.prepare.build_request import check_options
from workbench.launching.prepare.options import LaunchOptions
from workbench.storage.push import push
from workbench.store.layout import RunPaths
from workbench.store.runs import Store

__all__ = ["command"]


def test_what_push_prints_resumes_from_a_folder(
    made: RunPaths, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = str(made.directory.parent)
    done = command("push", "gpt-2", str(tmp_path / "vol ume"), "--store", store)
    line = done.out.splitlines()[-1].partition("workbench ")[2]
    asked = list[str]()

    def pulled(url: str, _store: object) -> None:
        asked.append(url)
        raise UsageError("enough")

    monkeypatch.setattr(recovery, "pull_with_bar", pulled)
    for words in (shlex.split(line), ["resume", "vol ume/gpt-2"]):
        assert "enough" in command(*words, cwd=tmp_path).err
    assert asked == [str(tmp_path / "vol ume" / "gpt-2"), "vol ume/gpt-2"]


def test_a_folder_without_a_pushed_run_is_told(command: Command, tmp_path: Path) -> None:
    told = command("resume", str(tmp_path / "nothing"), cwd=tmp_path)
    assert told.code == 2
    assert f"no pushed run at {tmp_path / 'nothing'}" in told.err


def test_a_push_that_was_cut_off_is_told_from_a_wrong_address(
    command: Command, tmp_path: Path
) -> None:
    place = tmp_path / "volume" / "gpt-2"
    (place / "pieces").mkdir(parents=True)
    refused = command("pull", str(place), "--store", str(tmp_path / "runs"))
    assert refused.code == 2
    assert f"No push to {place} has ended yet. Push the run again" in refused.err


def test_an_empty_address_is_refused(made: RunPaths, command: Command) -> None:
    told = command("push", "gpt-2", "", "--store", str(made.directory.parent))
    assert (told.code, told.out) == (2, "")
    assert "URL is empty" in told.err


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("s3://", "'s3://' names no bucket"),
        ("s3:///runs", "'s3:///runs' names no bucket"),  # a variable that is not set
        ("s3:/bucket/runs", "two slashes after the colon"),
        ("file://mnt/runs", "names no absolute folder: give file:///mnt/runs"),
        ("file:///", "names no absolute folder"),
        ("{store}", "lies in the folder of the run itself"),
        ("{store}/gpt-2/copy", "lies in the folder of the run itself"),
        ("file://{store}", "lies in the folder of the run itself"),
    ],
)
def test_an_address_that_is_not_meant_is_refused(made: RunPaths, url: str, said: str) -> None:
    before = sorted(made.directory.rglob("*"))
    with pytest.raises(UsageError, match=said):
        push(made, url.format(store=made.directory.parent))
    assert sorted(made.directory.rglob("*")) == before


def test_a_mirror_into_the_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "runs")
    for mirror in ("runs", "link"):
        options = {"store": Store(tmp_path / "runs"), "mirror": str(tmp_path / mirror)}
        with pytest.raises(UsageError, match="in the folder of the run itself"):
            check_options(LaunchOptions.from_keywords(options))
