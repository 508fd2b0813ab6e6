"""The index: never the record, never in the way, never wrong."""

from __future__ import annotations

import json
import sqlite3
import threading
from pathlib import Path

import pytest

import workbench as wb
from tests.compare.made_runs import make_run
from workbench.compare import index
from workbench.store import files
from workbench.store.labels import change_labels


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
        other.execute("BEGIN EXCLUSIVE")  # somebody writes, and takes long
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
