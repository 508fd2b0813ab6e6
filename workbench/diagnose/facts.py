"""What the supervisor knows of a run's processes at one look."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from workbench.diagnose.node_facts import NodeFacts
from workbench.observe.pulse import Pulse, read_pulse
from workbench.store import processes
from workbench.store.layout import RunPaths
from workbench.store.schema import ProcessDoc

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")


class Saved(Protocol):
    """A checkpoint, as far as the rules need it; `recover.checkpoints.Checkpoint` is one."""

    @property
    def step(self) -> int | None:
        """Optimizer steps done; None when unknown."""
        ...

    @property
    def saved_at(self) -> float | None:
        """Unix seconds; None when unknown."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFacts:
    """One rank's process at one look."""

    process: ProcessDoc | None = None
    """Who it is; None before it has told."""
    alive: bool = False
    """Whether that very process lives."""
    process_state: str | None = None
    """Letter of /proc/PID/stat: R runs, S sleeps, D waits for a disk, T is stopped."""
    rss_bytes: int | None = None
    """Resident memory."""
    cpu_seconds: float | None = None
    """Processor time used so far, all threads."""
    pulse: Pulse | None = None
    """Where it is; None without the capture hook."""
    ended: bool = False
    """Whether it wrote its end record: the script itself is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """A run at one look."""

    phase: str
    """starting, running, stopping or ended."""
    elapsed_seconds: float
    """Since the run was started."""
    started_at: float
    """Unix seconds."""
    attempt: int = 1
    """Starts of the launcher so far."""
    world_size: int | None = None
    """Size of the process group that the script formed; None while unknown."""
    stopping: bool = False
    """Somebody asked the run to stop: what stands still now does so by request."""
    saving: bool = False
    """A checkpoint is being written."""
    ranks: Mapping[int, RankFacts] = field(default_factory=dict[int, RankFacts])
    """Each rank's process."""
    nodes: Sequence[NodeFacts] = ()
    """Each machine, where there are several."""
    checkpoints: Sequence[Saved] = ()
    """Newest first."""
    why_not_resumable: Callable[[], str] = str
    """Answers why ``workbench resume`` would be refused with them; "" = it works."""
    monotonic: float = field(default_factory=time.monotonic)
    """When this was looked at, on the clock that never jumps: all durations come from it."""
    time: float = field(default_factory=time.time)
    """The same in Unix seconds, for people."""


def rank_facts(paths: RunPaths, rank: int, process: ProcessDoc | None) -> RankFacts:
    """Read what there is to know of `rank`: three small files."""
    ended, pulse = paths.rank_end(rank).exists(), read_pulse(paths.rank_pulse(rank))
    fields = processes.stat_fields(process["pid"]) if process is not None else None
    mine = (
        process is not None
        and fields is not None
        and int(fields[19]) == process["start_ticks"]
        and process["boot_id"] == processes.boot_id()
    )
    if not mine or fields is None:
        return RankFacts(process=process, pulse=pulse, ended=ended)
    return RankFacts(
        process=process,
        alive=not processes.has_ended(fields),
        process_state=fields[0],
        rss_bytes=int(fields[21]) * _PAGE_BYTES,
        cpu_seconds=(int(fields[11]) + int(fields[12])) / _TICKS,
        pulse=pulse,
        ended=ended,
    )
