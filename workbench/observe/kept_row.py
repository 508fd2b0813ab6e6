"""``row.json``: written when a run has ended, so that a list of thousands reads one file of each.

It is never the record: it carries the times and sizes of the files that it was made from, and
counts only while they are the same. Delete it at any time.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from workbench.observe.curves import Curve, view_curve
from workbench.observe.rows import LISTED, labelled, row
from workbench.observe.summary import summarise
from workbench.observe.view import finite
from workbench.store.files import read_json, reading_once, write_json_atomic
from workbench.store.labels import read_labels
from workbench.store.layout import RunPaths
from workbench.store.row_schema import Row
from workbench.store.runs import Store
from workbench.store.schema import SCHEMA_VERSION

SOURCES = (
    *("run.json", "state.json", "view.json", "exit.json", "comparison.json"),
    "attempts.jsonl",
)
"""What a row is made from, beside the labels."""


def stamp(directory: Path, names: Iterable[str] = SOURCES, *, inodes: bool = False) -> str:
    """Changes whenever one of these files is written; with `inodes` also when it is copied."""
    parts: list[str] = []
    prefix = f"{directory}{os.sep}"
    for name in names:
        try:
            about = os.lstat(prefix + name)
        except OSError:
            parts.append("-")
        else:
            inode = f".{about.st_ino:x}" if inodes else ""
            parts.append(f"{about.st_mtime_ns:x}.{about.st_size:x}{inode}")
    return " ".join(parts)


def keep_row(paths: RunPaths) -> None:
    """Write row.json. Call it after exit.json, in a run of one's own.

    Raises:
        OSError: it cannot be written.
    """
    before = stamp(paths.directory)
    with reading_once():
        about = row(paths, view_curve(paths) or Curve())
    if about["state"] == "ended" and stamp(paths.directory) == before:
        kept = finite({name: about[name] for name in Row.__annotations__})
        write_json_atomic(paths.row, {"schema": SCHEMA_VERSION, "stamp": before, "row": kept})


def kept_row(paths: RunPaths) -> dict[str, Any] | None:
    """The row of an ended run as `rows.row` makes it; None where it must be made anew."""
    document = read_json(paths.row) or {}
    about: dict[str, Any] | None = document.get("row")
    if about is None or document.get("stamp") != stamp(paths.directory):
        return None
    if about["run"] != paths.directory.name or about["state"] != "ended":
        return None
    return {**about, **labelled(read_labels(paths))}


def short_summary(paths: RunPaths) -> dict[str, Any]:
    """The part of a summary that lists have (`rows.LISTED`), from as few files as possible."""
    about = kept_row(paths) or summarise(paths)
    return {key: about[key] for key in LISTED}


def runs(store: str | os.PathLike[str] | None = None) -> list[dict[str, Any]]:
    """Short summaries of all runs in the store, newest first."""
    place = Store(store)
    return [short_summary(RunPaths(place.root / run_id)) for run_id in place.ids()]
