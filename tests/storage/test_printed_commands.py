"""The commands that are printed of a pushed run can be typed as they stand."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.cli.conftest import Command, command
from workbench.cli import recovery
from workbench.errors import UsageError
from workbench.store.layout import RunPaths

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
