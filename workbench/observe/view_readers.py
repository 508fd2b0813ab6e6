"""Whether anybody reads view.json: how often it has to be written depends on it.

A reader changes the file's time of access, which at first is not later than its time of writing,
also where the kernel updates it no more than needed (relatime). Some disks keep no such time; then
nobody knows, and somebody may read at any moment. Who reads on another machine of a shared store
may not be seen, and then finds a view of the last three seconds.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from workbench.store.files import read_file

_READING_SECONDS = 10.0  # who reads looks again within them
_UNREAD_SECONDS = 3.0  # between two unread writes


class ViewReaders:
    """Decides when view.json is due. Call `due` once a second and `written` after each write."""

    def __init__(self, view: Path) -> None:
        self._view = view
        self._has_access_times: bool | None = None
        self._read_at = self._written_at = float("-inf")
        self._written_content: object = None

    def due(self, content: object) -> bool:
        """Whether to write now; `content`: a change of it is shown at once."""
        now = time.monotonic()
        if self._is_read():
            self._read_at = now
        unread = now - self._read_at > _READING_SECONDS and self._has_access_times
        return (
            not unread
            or content != self._written_content
            or now - self._written_at >= _UNREAD_SECONDS
        )

    def written(self, content: object) -> None:
        """The view was written."""
        self._written_at, self._written_content = time.monotonic(), content
        if self._has_access_times is None:
            self._has_access_times = self._tells_reads()

    def _is_read(self) -> bool:
        try:
            about = os.lstat(self._view)
        except OSError:
            return True
        return about.st_atime_ns > about.st_mtime_ns

    def _tells_reads(self) -> bool:
        """Read the view, as others do, and see whether that can be told."""
        try:
            os.utime(self._view, ns=(0, os.lstat(self._view).st_mtime_ns))
            read_file(self._view, 1 << 20)
        except OSError:
            return False
        return self._is_read()
