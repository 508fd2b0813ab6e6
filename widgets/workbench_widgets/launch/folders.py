"""What a file picker shows of the folders below the notebook's working directory."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

_MOST = 500
_HIDDEN = {"__pycache__", "node_modules"}


def listing(folder: str, endings: Collection[str] = (), root: Path | None = None) -> dict[str, Any]:
    """Folders and files of a folder, for the page; nothing above the root is shown.

    Args:
        folder: Relative to the root; "" = the root.
        endings: Of the files that are shown, as ``.py``; none = all.
        root: Default: the working directory.
    """
    root = (root or Path.cwd()).resolve()
    try:
        place = (root / folder).resolve()
    except (OSError, ValueError, RuntimeError):  # a zero byte; links that lead to themselves
        place = root
    if not place.is_relative_to(root):
        place = root
    relative = "" if place == root else place.relative_to(root).as_posix()
    answer: dict[str, Any] = {
        "type": "listing",
        "folder": relative,
        "root": str(root),
        "problem": "",
    }
    try:
        with os.scandir(place) as entries:
            rows = [
                (not _is_folder(entry), entry.name)
                for entry in entries
                if _is_shown(entry, endings)
            ]
    except OSError as error:
        return {**answer, "entries": [], "problem": f"{relative or root}: {error.strerror}."}
    rows.sort(key=lambda row: (row[0], row[1].lower()))
    if len(rows) > _MOST:
        answer["problem"] = f"{len(rows) - _MOST} more are not shown: type the path."
    entries = [{"name": name, "folder": not is_file} for is_file, name in rows[:_MOST]]
    return {**answer, "entries": entries}


def _is_shown(entry: os.DirEntry[str], endings: Collection[str]) -> bool:
    if entry.name.startswith(".") or entry.name in _HIDDEN:
        return False
    return _is_folder(entry) or not endings or Path(entry.name).suffix in endings


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads to itself
        return False
