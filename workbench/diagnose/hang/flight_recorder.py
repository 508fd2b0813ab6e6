"""The latest collective of each rank, from torch's flight recorder, and who is missing in it."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from workbench.store.files import read_json
from workbench.store.layout import RunPaths

_MAX_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class LastCollective:
    """The newest collective a rank began in one process group."""

    group: str
    number: int  # counted by each rank for itself: equal numbers belong together
    name: str  # all_reduce, barrier
    shape: str

    def __str__(self) -> str:
        return f"{self.name} #{self.number}{self.shape}"


def request_dump(paths: RunPaths) -> None:
    """Ask all ranks for one: who writes none has no thread of Python's that runs."""
    with contextlib.suppress(OSError):
        (paths.control / "dump").touch()


def dumped(paths: RunPaths, rank: int, newer_than: float) -> bool:
    """Whether `rank` wrote a dump after `newer_than` (Unix seconds)."""
    with contextlib.suppress(OSError):
        return paths.rank_trace(rank).stat().st_mtime >= newer_than
    return False


def last_collective(paths: RunPaths, rank: int, newer_than: float = 0.0) -> LastCollective | None:
    """Of the dump that `rank` wrote after `newer_than` (Unix seconds); None without one."""
    path = paths.rank_trace(rank)
    try:
        stat = path.stat()
    except OSError:
        return None
    if stat.st_mtime < newer_than or stat.st_size > _MAX_BYTES:
        return None
    entries = (read_json(path) or {}).get("entries")
    if not isinstance(entries, list):
        return None
    newest: LastCollective | None = None
    for entry in cast("list[Any]", entries):
        collective = _read(cast("dict[str, Any]", entry)) if isinstance(entry, dict) else None
        # The group of all ranks is where peers can be compared; others come and go.
        if collective is not None and (newest is None or collective.number >= newest.number):
            newest = collective
    return newest


def _read(entry: dict[str, Any]) -> LastCollective | None:
    number, name = entry.get("collective_seq_id"), entry.get("profiling_name")
    if not isinstance(number, int) or not isinstance(name, str) or entry.get("is_p2p"):
        return None
    group, sizes = str(entry.get("process_group")), str(entry.get("input_sizes") or "")
    return LastCollective(group, number, name.partition(":")[2] or name, f" {sizes}"[:60].rstrip())


def compare(last: Mapping[int, LastCollective]) -> tuple[str, tuple[int, ...]]:
    """One sentence on how the ranks differ, and those that are behind; both empty if they agree."""
    if len(last) < 2 or len({collective.group for collective in last.values()}) > 1:
        return "", ()
    if len({(collective.number, collective.name) for collective in last.values()}) == 1:
        return "", ()
    positions = ", ".join(
        f"rank {rank} {collective}" for rank, collective in sorted(last.items())[:8]
    )
    furthest = max(collective.number for collective in last.values())
    behind = tuple(
        rank for rank, collective in sorted(last.items()) if collective.number < furthest
    )
    return f"latest collectives: {positions}", behind


def mismatched(last: Mapping[int, LastCollective]) -> bool:
    """Whether ranks called different collectives as the same number of one group.

    No order of events makes that right: equal numbers are one and the same operation.
    """
    calls: dict[tuple[str, int], set[str]] = {}
    for collective in last.values():
        calls.setdefault((collective.group, collective.number), set()).add(collective.name)
    return any(len(names) > 1 for names in calls.values())


def counted(paths: RunPaths, rank: int, newer_than: float) -> int | None:
    """Collectives that `rank` has begun so far; None without a dump after `newer_than`.

    Where torch keeps none, the hook writes null for the entries: then it is not known either.
    """
    path = paths.rank_trace(rank)
    try:
        if path.stat().st_mtime < newer_than:
            return None
    except OSError:
        return None
    document = read_json(path)
    entries = (document or {}).get("entries", [])  # without any collective there is no such key
    if document is None or not isinstance(entries, list):
        return None
    numbers = [
        entry.get("op_id", entry.get("record_id", 0))
        for entry in cast("list[dict[str, Any]]", entries)
        if type(entry) is dict
    ]
    return max((number for number in numbers if isinstance(number, int)), default=0)
