"""Whether memory is short, on the host or under the container's limit. Standard library only."""

from __future__ import annotations

import os
from collections.abc import Callable

SHARE = 0.1
"""Less than this part free is short."""
ROOT = "/"


def is_scarce(root: str | None = None) -> bool:
    """Whether less than `SHARE` of the memory is free; what cannot be read is not short."""
    for read in (_of_host, _of_group, _of_old_group):
        try:
            total, free = read(lambda name: _text(root or ROOT, name))
        except (OSError, ValueError, KeyError):  # no such file; no limit is the word "max"
            continue
        if free < SHARE * total:
            return True
    return False


_Read = Callable[[str], str]


def _text(root: str, name: str) -> str:
    with open(os.path.join(root, name), encoding="ascii") as file:
        return file.read()


def _of_host(read: _Read) -> tuple[int, int]:
    """All of it and what new processes can have, in KiB."""
    fields = dict(line.split(":", 1) for line in read("proc/meminfo").splitlines())
    total, free = (int(fields[name].split()[0]) for name in ("MemTotal", "MemAvailable"))
    return total, free


def _of_group(read: _Read) -> tuple[int, int]:
    """The limit of cgroup 2 and what is free below it, in bytes."""
    limit, used = (int(read(f"sys/fs/cgroup/memory.{name}")) for name in ("max", "current"))
    return limit, limit - used + _cached(read("sys/fs/cgroup/memory.stat"), "")


def _of_old_group(read: _Read) -> tuple[int, int]:
    """The same of cgroup 1."""
    folder = "sys/fs/cgroup/memory/memory"
    limit, used = (int(read(f"{folder}.{name}_in_bytes")) for name in ("limit", "usage"))
    return limit, limit - used + _cached(read(f"{folder}.stat"), "total_")


def _cached(text: str, prefix: str) -> int:
    """Pages of files, which the kernel gives back when memory is short."""
    fields = dict(line.split() for line in text.splitlines())
    return sum(int(fields[f"{prefix}{name}_file"]) for name in ("inactive", "active"))
