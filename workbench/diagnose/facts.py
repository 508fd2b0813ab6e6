"""What the supervisor knows of a run's processes at one look."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.observe.gpu_errors import GpuError
from workbench.observe.pulse import Pulse, read_pulse
from workbench.store import processes
from workbench.store.layout import RunPaths
from workbench.store.schema import ProcessDoc

if TYPE_CHECKING:
    from workbench.recover.checkpoints import Checkpoint

SILENT_SECONDS = 90.0  # network storage may show a file up to a minute late
UNREACHABLE_SECONDS = 8.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """One machine of several at one look."""

    node: int
    """Counted from 0."""
    ranks: str
    """Its ranks, for people: ``ranks 2 to 3``."""
    host: str | None = None
    """Its name; None before it has told."""
    address: str | None = None
    """By which it reaches node 0."""
    phase: str | None = None
    """waiting, ready, running, ended, refused or left; None before it has told."""
    exit_code: int | None = None
    """Of its launcher; None while it runs, or when its end was not seen."""
    silent_seconds: float = 0.0
    """Since it told anything new."""
    unreachable_seconds: float | None = None
    """Since it last reached node 0; None = it does."""
    anew: bool = False
    """Whether its agent was started again in mid-attempt, and no launcher of it is left."""
    gpus: Mapping[int, str] = field(default_factory=dict[int, str])
    """Its cards, index of the driver -> name, in the order in which its ranks take them."""
    gpu_errors: Sequence[GpuError] = ()
    """What its driver told of them since its agent watches."""
    mute: bool = False
    """Whether it was told to end the attempt and has not answered."""
    message: str | None = None
    """Its own sentence, where it has one."""

    @property
    def name(self) -> str:
        """For people: ``Node 1 (host, 10.0.0.2)``."""
        location = ", ".join(filter(None, [self.host, self.address]))
        return f"Node {self.node} ({location})" if location else f"Node {self.node}"

    @property
    def lost(self) -> bool:
        """Whether its ranks cannot work with the others."""
        if self.anew or self.mute:
            return True
        if self.phase not in {"running", "ready"}:
            return False
        cut = self.unreachable_seconds is not None
        silent = self.silent_seconds > SILENT_SECONDS
        return silent or (cut and (self.unreachable_seconds or 0.0) > UNREACHABLE_SECONDS)


_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")


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
    swapped_bytes: int | None = None
    """Memory that was swapped out; None = unknown."""
    own_bytes: int | None = None
    """Of the resident memory, what the process wrote itself: no pages of files; None = unknown."""
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
    """The ranks have come to the step at which they were asked to stop, or are ended by signals:
    what stands still now does so by request."""
    saving: bool = False
    """A checkpoint is being written."""
    ranks: Mapping[int, RankFacts] = field(default_factory=dict[int, RankFacts])
    """Each rank's process."""
    nodes: Sequence[NodeFacts] = ()
    """Each machine, where there are several."""
    checkpoints: Sequence[Checkpoint] = ()
    """Newest first."""
    why_not_resumable: Callable[[], str] = str
    """Answers why ``workbench resume`` would be refused with them; "" = it works."""
    monotonic: float = field(default_factory=time.monotonic)
    """When this was looked at, on the clock that never jumps: all durations come from it."""
    time: float = field(default_factory=time.time)
    """The same in Unix seconds, for people."""


def rank_facts(paths: RunPaths, rank: int, process: ProcessDoc | None) -> RankFacts:
    """Read what there is to know of `rank`: four small files."""
    ended, pulse = paths.rank_end(rank).exists(), read_pulse(paths.rank_pulse(rank))
    fields = processes.stat_fields(process["pid"]) if process is not None else None
    mine = (
        process is not None
        and fields is not None
        and int(fields[19]) == process["start_ticks"]
        and process["boot_id"] == processes.boot_id()
    )
    if not mine or fields is None or process is None:
        return RankFacts(process=process, pulse=pulse, ended=ended)
    memory = _status(process["pid"])
    return RankFacts(
        process=process,
        alive=not processes.has_ended(fields),
        process_state=fields[0],
        rss_bytes=int(fields[21]) * _PAGE_BYTES,
        swapped_bytes=memory.get("VmSwap"),
        own_bytes=memory.get("RssAnon"),
        cpu_seconds=(int(fields[11]) + int(fields[12])) / _TICKS,
        pulse=pulse,
        ended=ended,
    )


def _status(pid: int) -> dict[str, int]:
    """Bytes by name of /proc/PID/status; {} where it cannot be read."""
    with contextlib.suppress(OSError, ValueError):
        lines = (line.split() for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        return {words[0][:-1]: 1024 * int(words[1]) for words in lines if words[-1:] == ["kB"]}
    return {}
