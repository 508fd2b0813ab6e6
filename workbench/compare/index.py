"""The store's index: rows and curves of ended runs, kept beside them so that lists open quickly.

``<store>/.index.sqlite`` is never the record. Each entry carries the stamp (times, sizes, inodes)
of the run's files that it was made from, and counts only while they are the same; a damaged index,
one of another version, or one that is not ours is as good as none; one that cannot be written is
done without. Delete it at any time.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import stat
import zlib
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from workbench.observe.curves import Curve, read_curve, view_curve
from workbench.observe.rows import COLUMNS, SOURCES, kept_row, row, stamp
from workbench.observe.view_json import finite
from workbench.store.files import reading_once
from workbench.store.layout import RunPaths
from workbench.store.runs import Store

FILE = ".index.sqlite"
VERSION = 6
_WAIT_SECONDS = 0.5  # for another writer; then this reading is not kept
_BATCH = 100  # runs read between two writings: what Ctrl-C can lose
_TABLE = "CREATE TABLE IF NOT EXISTS runs (run TEXT PRIMARY KEY, stamp TEXT, row TEXT, curve BLOB)"

OnProgress = Callable[[int, int], None]
"""Called with (runs read, runs to read) while a list is made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    run: str
    stamp: str
    row: dict[str, Any]
    curve: Curve | None  # None: not read, for lists need no curve


def table(store: Store, on_progress: OnProgress | None = None) -> list[dict[str, Any]]:
    """A row (`rows.row`) for every run of the store, newest first.

    Raises:
        StoreError: the store cannot be read.
    """
    indexed, folders = _indexed_rows(store.root), store.folders()
    rows: list[tuple[float, str, dict[str, Any]]] = []
    stale: list[tuple[int, str, str]] = []
    for ctime_ns, run in folders:
        state = _stamp(store.root / run)
        if run in indexed and indexed[run][0] == state:
            about = indexed[run][1]
            rows.append((about["created_at"] or ctime_ns / 1e9, run, about))
        else:
            stale.append((ctime_ns, run, state))
    gone = indexed.keys() - {run for _, run in folders}
    rows += _read_again(store, stale, gone, on_progress)
    return [about for _, _, about in sorted(rows, key=lambda row: row[:2], reverse=True)]


def _read_again(
    store: Store,
    stale: list[tuple[int, str, str]],
    gone: Iterable[str],
    on_progress: OnProgress | None,
) -> Generator[tuple[float, str, dict[str, Any]]]:
    """Rows of runs that the index does not know as they are; keeps those that cannot change."""
    fresh: list[_Entry] = []
    try:
        for done, (ctime_ns, run, state) in enumerate(stale):
            if on_progress is not None:
                on_progress(done, len(stale))
            with reading_once():
                read = _read_row(store, run, ctime_ns)
            if read is None:
                continue
            created, about, curve = read
            if about["state"] == "ended":
                fresh.append(_Entry(run=run, stamp=state, row=about, curve=curve))
            if len(fresh) >= _BATCH:
                _keep(store.root, fresh, gone)
                fresh, gone = [], ()
            yield created, run, about
    finally:
        if fresh or gone:
            _keep(store.root, fresh, gone)


def _read_row(
    store: Store, run: str, ctime_ns: int
) -> tuple[float, dict[str, Any], Curve | None] | None:
    """When it was created, its row, and its curve if that had to be read; None: it is no run."""
    paths = RunPaths(store.root / run)
    about = kept_row(paths)
    if about is not None:
        return about["created_at"] or ctime_ns / 1e9, about, None
    created = store.created(run, ctime_ns)
    if created is None:
        return None
    curve = view_curve(paths)
    return created, row(paths, curve or Curve()), curve


def curve(store: Store, run: str) -> Curve:
    """The curve of a run, from the index where that has it as it is, else from its files."""
    paths = RunPaths(store.root / run)
    with contextlib.suppress(sqlite3.Error, OSError, ValueError, KeyError, zlib.error):
        with _open(store.root, write=False) as index:
            query = "SELECT curve FROM runs WHERE run = ? AND stamp = ?"
            entry = index.execute(query, (run, _stamp(paths.directory))).fetchone()
        if entry is not None and entry[0] is not None:
            return Curve.read(json.loads(zlib.decompress(entry[0])))
    return read_curve(paths)


def _stamp(directory: Path) -> str:
    """Changes whenever a file that a row is made from is written."""
    return stamp(directory, (*SOURCES, "labels.json"), inodes=True)


def _indexed_rows(root: Path) -> dict[str, tuple[str, dict[str, Any]]]:
    """Stamp and row of every kept run; empty where there is no index to go by."""
    try:
        with _open(root, write=False) as index:
            rows = index.execute("SELECT run, stamp, row FROM runs").fetchall()
        read = ((run, stamp, json.loads(text)) for run, stamp, text in rows)
        return {run: (stamp, about) for run, stamp, about in read if _is_row(about)}
    except sqlite3.OperationalError:
        return {}  # none yet, or another one is writing it
    except (sqlite3.Error, OSError, ValueError):
        _drop(root)
        return {}


def _is_row(about: Any) -> bool:
    return isinstance(about, dict) and set(COLUMNS) <= cast("dict[str, Any]", about).keys()


def _keep(root: Path, fresh: Iterable[_Entry], gone: Iterable[str]) -> None:
    """Put entries in and take others out. An index that cannot be written is done without."""
    entries = [(entry.run, entry.stamp, _dumps(entry.row), _packed(entry.curve)) for entry in fresh]
    try:
        with _open(root, write=True) as index:
            index.executemany("DELETE FROM runs WHERE run = ?", [(run,) for run in gone])
            index.executemany("INSERT OR REPLACE INTO runs VALUES (?, ?, ?, ?)", entries)
            index.commit()
    except (sqlite3.OperationalError, OSError):
        return  # busy, read-only or full: the next reading will keep it
    except sqlite3.Error:
        _drop(root)


def _dumps(document: Mapping[str, Any]) -> str:
    return json.dumps(finite(document), allow_nan=False, separators=(",", ":"))


def _packed(points: Curve | None) -> bytes | None:
    return None if points is None else zlib.compress(_dumps(points.document()).encode(), 1)


@contextlib.contextmanager
def _open(root: Path, *, write: bool) -> Generator[sqlite3.Connection]:
    """The index of our version.

    Raises:
        sqlite3.Error: damaged, busy, or (OperationalError) not there.
        OSError: what lies there is not an index of ours.
    """
    path = root / FILE
    _check(path)
    if write and not path.exists():  # readable by us only, as the runs are
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    mode = "rw" if write else "ro"
    uri = f"{path.as_uri()}?mode={mode}"
    with contextlib.closing(sqlite3.connect(uri, uri=True, timeout=_WAIT_SECONDS)) as index:
        index.execute("PRAGMA trusted_schema = OFF")
        version = index.execute("PRAGMA user_version").fetchone()[0]
        if write and version == 0:
            index.execute(f"PRAGMA user_version = {VERSION}")
            index.execute(_TABLE)
        elif version not in {0, VERSION}:
            raise sqlite3.DatabaseError(f"an index of version {version}")
        yield index


def _check(path: Path) -> None:
    """Refuse a link, a pipe, and the file of another user, beside which nothing is written."""
    for file in (path, path.with_name(f"{FILE}-journal")):
        try:
            about = os.lstat(file)
        except FileNotFoundError:
            continue
        ours = about.st_uid == os.geteuid() and about.st_nlink == 1
        if not stat.S_ISREG(about.st_mode) or not ours:
            raise PermissionError(f"{file} is not ours")


def _drop(root: Path) -> None:
    """Remove an index that cannot be read, so that the next writing begins again."""
    for name in (FILE, f"{FILE}-journal"):
        path = root / name
        with contextlib.suppress(OSError):
            if stat.S_ISREG(os.lstat(path).st_mode) and os.lstat(path).st_uid == os.geteuid():
                path.unlink()
