"""The index: never the record, never in the way, never wrong."""

from __future__ import annotations

import json
import sqlite3
import threading
from pathlib import Path

import pytest

import workbench as wb
from tests.compare.made_runs import make_run
from tests.cpu_budget import least_seconds
from workbench.compare import index
from workbench.observe.rows import keep_row, kept_row
from workbench.store import files
from workbench.store.labels import change_labels
from workbench.store.layout import RunPaths


@pytest.fixture
def store(tmp_path: Path) -> wb.Store:
    root = tmp_path / "runs"
    for number in range(4):
        make_run(root, f"run-{number}", steps=20 + number, age=number)
    return wb.Store(root)


def read(store: wb.Store) -> tuple[int, list[dict]]:
    """How many runs had to be read, and the table."""
    told: list[int] = []
    rows = index.table(store, lambda _done, of: told.append(of))
    return len(told), rows


def test_it_is_made_once_and_removing_it_changes_nothing(store: wb.Store) -> None:
    first = read(store)
    assert first[0] == 4
    assert [one["run"] for one in first[1]] == [one["run"] for one in wb.runs(store.root)]
    again = read(store)
    assert again == (0, first[1])
    curve = index.curve(store, "run-2")
    (store.root / index.FILE).unlink()
    assert read(store) == first
    assert index.curve(store, "run-2") == curve


def test_each_document_is_read_and_checked_once(
    store: wb.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A first list of thousands of runs took most of its time in reading the same files again."""
    read_files: list[str] = []
    whole = files.read_file

    def counted(path: Path, most: int) -> bytes:
        read_files.append(str(path))
        return whole(path, most)

    monkeypatch.setattr(files, "read_file", counted)
    index.table(store)
    documents = [path for path in read_files if path.endswith(".json")]
    assert len(documents) == len(set(documents)), sorted(documents)


def test_only_what_changed_is_read_again(store: wb.Store) -> None:
    read(store)
    make_run(store.root, "run-4", age=4)
    change_labels(store.find("run-1"), add=["kept"])
    exit_path = store.find("run-2").exit
    exit_path.write_text(json.dumps(json.loads(exit_path.read_text()) | {"outcome": "failed"}))
    count, rows = read(store)
    assert count == 3
    found = {one["run"]: one for one in rows}
    assert rows[0]["run"] == "run-4"
    assert found["run-1"]["tags"] == ["kept"]
    assert found["run-2"]["outcome"] == "failed"
    assert read(store)[0] == 0


def test_a_run_that_is_gone_is_not_listed(store: wb.Store) -> None:
    read(store)
    store.find("run-3").directory.rename(store.root.parent / "elsewhere")
    assert [one["run"] for one in read(store)[1]] == ["run-2", "run-1", "run-0"]


def test_a_run_without_an_end_is_never_kept(store: wb.Store) -> None:
    store.find("run-0").exit.unlink()
    assert read(store)[0] == 4
    assert read(store)[0] == 1


@pytest.mark.parametrize("garbage", [b"", b"not a database", b"SQLite format 3\x00" + b"x" * 8000])
def test_a_damaged_one_is_made_anew(store: wb.Store, garbage: bytes) -> None:
    before = read(store)[1]
    (store.root / index.FILE).write_bytes(garbage)
    assert read(store) == (4, before)
    assert read(store) == (0, before)


def test_one_of_another_version_is_made_anew(store: wb.Store) -> None:
    before = read(store)[1]
    with sqlite3.connect(store.root / index.FILE) as other:
        other.execute("PRAGMA user_version = 99")
        other.execute("UPDATE runs SET row = '{}'")
    other.close()
    assert read(store) == (4, before)
    assert read(store) == (0, before)


def test_an_entry_that_says_nothing_is_read_again(store: wb.Store) -> None:
    before = read(store)[1]
    for broken in ("{}", "[]", "half", '{"run": "run-1"}'):
        with sqlite3.connect(store.root / index.FILE) as other:
            other.execute("UPDATE runs SET row = ? WHERE run = 'run-1'", (broken,))
        other.close()
        assert read(store)[1] == before


def test_what_cannot_be_written_is_done_without(store: wb.Store) -> None:
    before = read(store)[1]
    with sqlite3.connect(store.root / index.FILE) as other:
        other.execute("BEGIN EXCLUSIVE")  # someone writes, and takes long
        assert read(store) == (4, before)
    other.close()
    assert read(store) == (0, before)


def test_nothing_is_written_through_a_link(store: wb.Store, tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_bytes(b"")
    (store.root / index.FILE).symlink_to(target)
    assert read(store)[0] == read(store)[0] == 4
    assert target.read_bytes() == b""


def test_only_its_owner_may_read_it(store: wb.Store) -> None:
    read(store)
    assert (store.root / index.FILE).stat().st_mode & 0o777 == 0o600


def test_many_readers_and_writers_at_once(store: wb.Store) -> None:
    expected = [one["run"] for one in wb.runs(store.root)]
    seen: list[list[str]] = []

    def look() -> None:
        for _ in range(5):
            seen.append([one["run"] for one in index.table(store)])
            (store.root / index.FILE).unlink(missing_ok=True)

    threads = [threading.Thread(target=look) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert seen == [expected] * 20


# row.json: what a run leaves for lists when it ends.


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the documents that were read."""
    seen: list[str] = []
    whole = files.read_file

    def counted(path: Path, most: int) -> bytes:
        data = whole(path, most)
        seen.append(path.name)
        return data

    monkeypatch.setattr(files, "read_file", counted)
    return seen


def keep_rows(store: wb.Store) -> None:
    for _, run in store.folders():
        keep_row(RunPaths(store.root / run))


def test_a_first_list_reads_one_small_file_of_each_run(store: wb.Store, opened: list[str]) -> None:
    whole = read(store)
    keep_rows(store)
    (store.root / index.FILE).unlink()
    opened.clear()
    assert read(store) == whole
    assert sorted(opened) == ["row.json"] * 4
    assert max((store.root / run / "row.json").stat().st_size for run in store.ids()) < 2000
    opened.clear()
    assert read(store) == (0, whole[1])
    assert opened == []
    curve = index.curve(store, "run-2")
    (store.root / index.FILE).unlink()
    assert index.curve(store, "run-2") == curve
    opened.clear()
    assert [one["run"] for one in wb.runs(store.root)] == [one["run"] for one in whole[1]]
    assert sorted(opened) == ["row.json"] * 4 + ["run.json"] * 4  # which is newest: run.json


def test_a_list_by_rows_takes_a_small_share_of_the_time(tmp_path: Path) -> None:
    """Of the processor's, the least of three: the ratio holds on any machine."""
    store = wb.Store(tmp_path)
    for number in range(40):
        make_run(store.root, f"run-{number}", steps=400, age=number)

    def first_list() -> float:
        def read_first() -> None:
            (store.root / index.FILE).unlink(missing_ok=True)
            read(store)

        return least_seconds(read_first)

    before = first_list()
    keep_rows(store)
    assert first_list() < before / 2


def test_a_row_counts_while_its_run_is_as_it_was(store: wb.Store, opened: list[str]) -> None:
    keep_rows(store)
    change_labels(store.find("run-1"), add=["kept"], archived=True)
    exit_path = store.find("run-2").exit
    exit_path.write_text(json.dumps(json.loads(exit_path.read_text()) | {"outcome": "failed"}))
    store.find("run-3").directory.rename(store.root / "renamed")
    opened.clear()
    found = {one["run"]: one for one in read(store)[1]}
    assert (found["run-1"]["tags"], found["run-1"]["archived"]) == (["kept"], True)
    assert found["run-2"]["outcome"] == "failed"
    assert set(found) == {"run-0", "run-1", "run-2", "renamed"}
    assert opened.count("view.json") == 2  # of run-2 and the renamed one
    keep_row(store.find("run-2"))
    assert (kept_row(store.find("run-2")) or {})["outcome"] == "failed"


def test_a_run_that_goes_on_keeps_no_row(store: wb.Store) -> None:
    paths = store.find("run-0")
    keep_row(paths)
    paths.exit.unlink()
    assert kept_row(paths) is None
    paths.row.unlink()
    keep_row(paths)
    assert not paths.row.exists()


@pytest.mark.parametrize(
    "change",
    [
        {"row": None},
        {"row": {}},
        {"row": {"steps": "many"}},
        {"row": {"processes": None, "run": "another"}},
        {"row": {"state": "running"}},
        {"row": {"started_at": -1}},
        {"stamp": None},
        {"stamp": "-"},
    ],
)
def test_a_row_that_cannot_be_is_made_anew(store: wb.Store, change: dict[str, object]) -> None:
    whole = read(store)
    keep_rows(store)
    (store.root / index.FILE).unlink()
    path = store.find("run-1").row
    kept = json.loads(path.read_text())
    row = change.get("row", {})
    changed = row and {**kept["row"], **row} if row else row
    path.write_text(json.dumps({**kept, **change} | ({"row": changed} if "row" in change else {})))
    assert read(store) == whole
    path.write_bytes(b"[" * 100_000)
    (store.root / index.FILE).unlink()
    assert read(store) == whole
