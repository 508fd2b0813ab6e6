"""Snapshots of a run for its page: whole at first, then only what changed."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from pathlib import Path
from typing import Any

from workbench.pages.changes import changes
from workbench.store.files import read_json


def snapshot_of(directory: Path) -> dict[str, Any] | None:
    """The message a dashboard draws from, None before the first ``view.json``."""
    view = read_json(directory / "view.json")
    if view is None:
        return None
    if view.get("phase") == "ended" and "processes_left" not in view:  # of an earlier version
        view |= read_json(directory / "exit.json") or {}
    return {"type": "snapshot", "view": view, "age_seconds": _age(view)}


def _age(view: dict[str, Any]) -> float | None:
    written_at = view.get("written_at")
    return time.time() - written_at if written_at else None


class Snapshots:
    """The latest views of one run, by version; threads may share it."""

    def __init__(self, directory: Path, *, versions_max: int = 1) -> None:
        """`versions_max`: how many versions can be the base of what is sent."""
        self._directory, self._versions_max = directory, versions_max
        self._views: OrderedDict[str, dict[str, Any]] = OrderedDict()
        self._stamp: tuple[int, ...] | None = None
        self._lock = threading.Lock()

    @property
    def latest(self) -> dict[str, Any] | None:
        """The view that was read last."""
        with self._lock:
            return next(reversed(self._views.values()), None)

    def since(self, base: str | None) -> dict[str, Any] | None:
        """The message for a page that holds version `base`; None before the first view.

        It has ``changes`` where `base` is still known here, else the whole ``view``. The changes
        are empty where the page has the latest version.
        """
        with self._lock:
            self._read()
            if not self._views:
                return None
            version, view = next(reversed(self._views.items()))
            base_view = self._views.get(base) if base is not None else None
            about = {"type": "snapshot", "version": version, "age_seconds": _age(view)}
            if base_view is None:
                return {**about, "base": None, "view": view}
            return {**about, "base": base, "changes": changes(base_view, view)}

    def _read(self) -> None:
        """Read ``view.json`` if it is another one than last time."""
        try:
            about = (self._directory / "view.json").lstat()
        except OSError:
            return
        stamp = (about.st_mtime_ns, about.st_ino, about.st_size)
        if stamp == self._stamp:
            return
        snapshot = snapshot_of(self._directory)
        if snapshot is None:
            return
        self._stamp = stamp
        view = snapshot["view"]
        self._views[f"{view.get('written_at')}-{view.get('seq')}"] = view
        while len(self._views) > self._versions_max + 1:
            self._views.popitem(last=False)
