"""What a rank and the programs that it started have done so far: who works does not hang."""

from __future__ import annotations

import os
from dataclasses import dataclass

from workbench.store import processes
from workbench.store.processes import boot_id, stat_fields
from workbench.store.schema import ProcessDoc

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_READ_OR_WRITTEN = 32 << 20  # more than a rank's own answers to our questions
_OF_CHILDREN = 1 << 20
_GROWN = 64 << 20
_CHILDREN_SHARE = 0.05  # of one core


@dataclass(frozen=True, slots=True)
class Work:
    """One rank's at one moment; only differences tell something."""

    moved_bytes: int = 0
    """Read and written by the rank itself, and by children that it has collected."""
    resident_bytes: int = 0
    """Memory that it has in use."""
    children_cpu_seconds: float = 0.0
    """Processor time of its descendants, of those that have ended too."""
    children_moved_bytes: int = 0
    """Read and written by its living descendants."""

    def goes_on(self, before: Work) -> bool:
        """Whether it read, wrote or took more memory since `before` than who stands still."""
        moved = self.moved_bytes - before.moved_bytes
        grown = self.resident_bytes - before.resident_bytes
        return moved > _READ_OR_WRITTEN or grown > _GROWN

    def children_go_on(self, before: Work, seconds: float) -> bool:
        """Whether its descendants worked in the `seconds` since `before`: loaders, or uploads."""
        used = self.children_cpu_seconds - before.children_cpu_seconds
        moved = self.children_moved_bytes - before.children_moved_bytes
        return used > _CHILDREN_SHARE * seconds > 0 or moved > _OF_CHILDREN


def work_of(process: ProcessDoc | None) -> Work:
    """What the process has done so far; nothing for one of another machine."""
    if process is None or not _is_here(process):
        return Work()
    fields = stat_fields(process["pid"])
    if fields is None:
        return Work()
    children = processes.descendants(process["pid"])
    child_fields = [stat_fields(child["pid"]) for child in children]
    return Work(
        moved_bytes=processes.moved_bytes(process),
        resident_bytes=int(fields[21]) * _PAGE_BYTES,
        children_cpu_seconds=_ticks(fields, collected=True)
        + sum(_ticks(of) + _ticks(of, collected=True) for of in child_fields if of is not None),
        children_moved_bytes=sum(map(processes.moved_bytes, children)),
    )


def _ticks(fields: list[str], *, collected: bool = False) -> float:
    """Processor seconds of a process, or of the children that it has collected."""
    return sum(map(int, fields[13:15] if collected else fields[11:13])) / _TICKS


def _is_here(process: ProcessDoc) -> bool:
    return process["boot_id"] == boot_id()


def awaited_program(process: ProcessDoc | None, *, seen_in_stack: bool) -> tuple[int, str] | None:
    """Pid and name of the program that the main thread waits for; None: it waits for none.

    `seen_in_stack`: its stack shows that it waits for one (`Stack.waits_for_program`). If not
    (`os.system`), the kernel tells.
    """
    if process is None or not _is_here(process):
        return None
    pid = process["pid"]
    if not seen_in_stack and processes.waits_in(pid) != "do_wait":
        return None
    own = [child for child in processes.descendants(pid) if _parent(child) == pid]
    if not own:
        return None
    started = max(own, key=_start)
    inside = processes.descendants(started["pid"])  # what a shell runs, for example
    working = max(inside, key=_start, default=started)["pid"]
    return working, processes.name(working)


def _parent(process: ProcessDoc) -> int | None:
    fields = stat_fields(process["pid"])
    return None if fields is None else int(fields[1])


def _start(process: ProcessDoc) -> int:
    return process["start_ticks"]
