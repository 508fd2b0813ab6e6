"""Tags, notes and the archive mark: kept, checked, and never lost to a second writer."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import workbench as wb
from workbench.errors import ForeignRunError
from workbench.store.labels import MAX_TAGS, Labels, change_labels, read_labels
from workbench.store.layout import RunPaths


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    return wb.Store(tmp_path / "runs").create("labelled")


def test_what_is_not_given_stays(paths: RunPaths) -> None:
    assert read_labels(paths) == Labels()
    change_labels(paths, add=["b", "a", "b"], note="  first try\n")
    change_labels(paths, archived=True)
    assert read_labels(paths) == Labels(tags=("a", "b"), note="first try", archived=True)
    change_labels(paths, add=["c"], remove=["a", "never there"], note="", archived=False)
    assert read_labels(paths) == Labels(tags=("b", "c"))


@pytest.mark.parametrize("tag", ["", "two words", "-x", "<b>", "a" * 41, "a\nb", "a,b", "ä"])
def test_a_bad_tag_changes_nothing(paths: RunPaths, tag: str) -> None:
    with pytest.raises(wb.UsageError, match="is not a tag"):
        change_labels(paths, add=["good", tag], note="new")
    assert read_labels(paths) == Labels()
    assert not paths.labels.exists()


def test_too_much_is_refused(paths: RunPaths) -> None:
    with pytest.raises(wb.UsageError, match="at most 2000"):
        change_labels(paths, note="x" * 2001)
    with pytest.raises(wb.UsageError, match=f"at most {MAX_TAGS}"):
        change_labels(paths, add=[f"t{number}" for number in range(MAX_TAGS + 1)])


def test_foreign_labels_are_taken_as_far_as_they_can_be(paths: RunPaths) -> None:
    paths.labels.write_text(json.dumps({"tags": ["ok", "\x1b[31m", 7], "note": 9, "archived": "y"}))
    assert read_labels(paths) == Labels()  # a list with a number in it is no list of tags
    note = "\x1b]52;c;ZXZpbA==\x07red \u202egnp"
    paths.labels.write_text(json.dumps({"tags": ["ok", "<b>"], "note": note}))
    assert read_labels(paths) == Labels(tags=("ok",), note="red gnp")  # inert
    paths.labels.write_text("{half")
    assert read_labels(paths) == Labels()


def test_of_many_writers_none_is_lost(paths: RunPaths) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: change_labels(paths, add=[f"t{number}"]), range(24)))
    assert len(read_labels(paths).tags) == 24


def test_a_link_is_not_written_through(paths: RunPaths, tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("kept")
    paths.labels.symlink_to(target)
    with pytest.raises(ForeignRunError, match=r"labels\.json is a symbolic link"):
        change_labels(paths, add=["x"])
    assert target.read_text() == "kept"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.symlink_to(paths.directory)
    with pytest.raises(wb.StoreError):
        change_labels(RunPaths(elsewhere), add=["y"])
