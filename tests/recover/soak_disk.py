"""Small file systems, and how they run full."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

from .soak_plan import FULL_DISK, NO_INODES

_BYTES, _INODES = 64 << 20, 4000


@contextlib.contextmanager
def small_disk(folder: Path) -> Generator[bool]:
    """A small file system at `folder` until the end; False where it cannot be mounted."""
    folder.mkdir()
    options = f"size={_BYTES},nr_inodes={_INODES}"
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, check=False)
        mounted = done.returncode == 0
    except OSError:
        mounted = False
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(folder)], check=False)


@contextlib.contextmanager
def _full_disk(folder: Path) -> Generator[None]:
    """No free byte on the file system of `folder`."""
    filler = folder.parent / "filler"
    # Unbuffered: what a buffer still holds would be refused once more when it is closed.
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(b"\0" * (1 << 16)):
            pass
    try:
        yield
    finally:
        filler.unlink()


@contextlib.contextmanager
def _no_inodes(folder: Path) -> Generator[None]:
    """No free inode on the file system of `folder`."""
    fillers = folder.parent / "fillers"
    with contextlib.suppress(OSError):
        fillers.mkdir()
        for number in range(_INODES + 1):
            (fillers / str(number)).touch()
    try:
        yield
    finally:
        for path in fillers.glob("*"):
            path.unlink()


FILLS: dict[str, Callable[[Path], Any]] = {FULL_DISK: _full_disk, NO_INODES: _no_inodes}
