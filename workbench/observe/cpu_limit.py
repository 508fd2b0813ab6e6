"""What the CPU limit of a container (its cgroup's quota) lets a process have, and what it refuses.

The kernel counts for each cgroup the time for which threads that could run were held back until the
next period. A limit may be set on any group above the process: the one that refuses most counts.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

from workbench.describe.cgroups import group_folders
from workbench.describe.detection import cpu_quota

LIMITS_SECONDS = 10.0
"""How long the groups of a process, and which of them have a limit, are taken to stay the same."""


class _Reading(NamedTuple):
    """Of one cgroup that has a limit."""

    at: float  # seconds of a steady clock
    refused: float  # seconds on all cores together, since the group was made
    cores: float  # the limit


class CpuLimit:
    """Gives what was refused since the look before."""

    def __init__(self) -> None:
        self._before: dict[Path, _Reading] = {}
        self._pid, self._due = 0, 0.0

    def refused_share(self, pid: int) -> float | None:
        """What the limit on `pid` refused, of this and of all that it grants: 0..1.

        None where no limit is set, and at the first look.
        """
        at = time.monotonic()
        folders = list(self._before)
        if pid != self._pid or at >= self._due:
            self._pid, self._due = pid, at + LIMITS_SECONDS
            folders = _groups(pid)
        readings = ((folder, _reading(folder, at)) for folder in folders)
        now = {folder: reading for folder, reading in readings if reading is not None}
        before, self._before = self._before, now
        both = [(before[folder], reading) for folder, reading in now.items() if folder in before]
        return max((_share(*pair) for pair in both), default=None)


def _share(before: _Reading, now: _Reading) -> float:
    refused = max(0.0, now.refused - before.refused)
    granted = now.cores * max(1e-3, now.at - before.at)
    return round(refused / (refused + granted), 3)


def _groups(pid: int) -> list[Path]:
    """The CPU controller's folders of the groups that `pid` is in, from its own to the root."""
    return group_folders(pid, "cpu")


def _reading(folder: Path, at: float) -> _Reading | None:
    """None where the group has no limit of its own."""
    try:
        cores = cpu_quota(folder)
        if cores is None:
            return None
        lines = (folder / "cpu.stat").read_text("ascii").splitlines()
        stat = {name: int(value) for name, value in (line.split() for line in lines)}
        micros = stat.get("throttled_usec")  # cgroup 2; 1 counts in ns
        refused = stat["throttled_time"] / 1e9 if micros is None else micros / 1e6
        return _Reading(at, refused, cores)
    except (OSError, ValueError, KeyError):
        return None
