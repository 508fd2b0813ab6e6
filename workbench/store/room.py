"""Whether the disk below a folder has room for what a run writes."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from workbench.units import format_bytes

FULL_BYTES = 64 << 10
"""With less than this free, a run's state, view or end can no longer be written."""
FULL_FILES = 4
_FULL = {errno.ENOSPC, errno.EDQUOT}


def shortage(
    folder: Path, *, bytes_needed: int = FULL_BYTES, files_needed: int = FULL_FILES
) -> str:
    """What the disk of `folder` lacks, as a clause; "" = it has room, or no one can tell.

    A folder that is not there yet is asked of the nearest one above it.
    """
    there = nearest_existing(folder)
    try:
        disk = os.statvfs(there)
    except OSError:
        return ""
    free, total = disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize
    if total and free < bytes_needed:
        return f"only {format_bytes(free)} are free on the disk of {there}"
    if disk.f_files and disk.f_favail < files_needed:
        return f"the disk of {there} takes no more files: its inodes are used up"
    return ""


def is_full(error: BaseException) -> bool:
    """Whether an error, or the one behind it, means a full disk or a used up quota.

    >>> is_full(OSError(errno.ENOSPC, "No space left on device")), is_full(OSError("gone"))
    (True, False)
    """
    causes = (error, error.__cause__)
    return any(isinstance(cause, OSError) and cause.errno in _FULL for cause in causes)


def nearest_existing(folder: Path) -> Path:
    """`folder`, or the nearest one above it that is there: its files will lie on that disk.

    >>> nearest_existing(Path("/no/such/folder"))
    PosixPath('/')
    """
    return next((place for place in (folder, *folder.parents) if place.exists()), folder)
