"""The control groups (cgroups) of a process; a limit may be set on each, as Slurm does on a job's.

A container usually sees its own group as the root.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path("/sys/fs/cgroup")
PROC = Path("/proc")
USED = {"memory.max": "memory.current", "memory.limit_in_bytes": "memory.usage_in_bytes"}
"""File of the limit of memory (cgroup 2, cgroup 1), and of what counts towards it."""


def group_folders(pid: int | str, controller: str) -> list[Path]:
    """Folders of the groups that `pid` is in, from its own to the root; some may not be there."""
    try:
        lines = (PROC / str(pid) / "cgroup").read_text("utf-8").splitlines()
    except (OSError, ValueError):
        lines = list[str]()
    groups = list[Path]()
    for line in lines:
        _, names, path = line.split(":", 2)
        if names and controller not in names.split(","):
            continue
        roots = [ROOT / folder for folder in (names, controller)] if names else [ROOT]
        root = next(filter(Path.exists, roots), ROOT)
        group = root / path.strip("/")
        groups += [folder for folder in (group, *group.parents) if folder.is_relative_to(root)]
    return groups or [ROOT, ROOT / controller]


class MemoryLimit(NamedTuple):
    """A limit of memory on a control group."""

    file: Path
    bytes: int


def memory_limits() -> Iterator[MemoryLimit]:
    """Each limit of memory on this process."""
    for folder in group_folders("self", "memory"):
        for name in USED:
            with contextlib.suppress(OSError, ValueError):  # no limit is the word "max"
                yield MemoryLimit(folder / name, int((folder / name).read_text("ascii")))
