"""Whose a checkpoint is that was found by its content: several runs may save in the same folders.

What the runs of a store name in their arguments tells, and when each of them was at work.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

from workbench.store import names
from workbench.store.files import parse_line, read_json
from workbench.store.layout import RunPaths
from workbench.store.record import read_run
from workbench.store.run_record import RunRecord
from workbench.store.starts import read_attempts
from workbench.store.status import read_status

_SLACK_SECONDS = 10.0
"""Clocks of machines and file systems differ; a file may reach the disk after its process."""


_NEAR, _FAR = 2, 20
"""Steps between a checkpoint and what a run had done: so few are its own, so many are not."""
_MAX_LINE = 1 << 20


def named_places(run: RunRecord, words: Sequence[str]) -> Iterator[Path]:
    """Files and folders among `words` that lie below the working directory or are absolute."""
    work = Path(run.working_directory or "/nowhere")
    for word in words:
        text = word.rpartition("=")[2]
        if text and "\0" not in text and len(text) < 4096:
            place = Path(os.path.normpath(work / text))
            if place != work and place not in work.parents and place.exists():
                yield place


@dataclass(frozen=True, slots=True)
class Saver:
    """A run as one that may have written a file."""

    name: str
    """Its id."""
    work: Path
    """Its working directory."""
    named: tuple[Path, ...]
    """What its arguments name, except where it began."""
    spans: tuple[tuple[float, float], ...]
    """Unix seconds between which it was at work, one pair per attempt."""

    def was_at_work(self, at: float) -> bool:
        """Whether it may have written something then."""
        return any(begun - 1.0 <= at <= ended + _SLACK_SECONDS for begun, ended in self.spans)

    def depth(self, path: Path) -> int:
        """How closely its arguments name `path`: parts of the deepest place around it, or 0."""
        around = [place for place in self.named if place == path or place in path.parents]
        return max((len(place.parts) for place in around), default=0)

    def reaches(self, path: Path) -> bool:
        """Whether it may have written there at all."""
        return self.work in path.parents or self.depth(path) > 0


def saver(paths: RunPaths, run: RunRecord) -> Saver:
    """What is known of a run's places and times."""
    words, origins = list(run.arguments), {(run.resumed_from or {}).get("checkpoint")}
    spans = list[tuple[float, float]]()
    for line in read_attempts(paths):
        latest: Any = line.get("arguments")
        words += [str(word) for word in latest] if isinstance(latest, list) else []  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        origins.add(line.get("checkpoint"))
        at = line.get("time")
        if isinstance(at, int | float) and line.get("event") == "start":
            spans.append((float(at), -1.0))
        elif isinstance(at, int | float) and spans:
            spans[-1] = (spans[-1][0], float(at))
    if not spans and not run.queued_at:
        spans = [(run.created_at, -1.0)]
    if spans and spans[-1][1] < 0:
        spans[-1] = (spans[-1][0], _end(paths))
    places = dict.fromkeys(named_places(run, words))
    named = tuple(place for place in places if str(place) not in origins)
    work = Path(run.working_directory or "/nowhere")
    return Saver(paths.directory.name, work, named, tuple(spans))


def step_at(paths: RunPaths, at: float) -> int | None:
    """Optimizer steps that rank 0 had done at that time; None = it recorded none until then.

    Its lines are in the order of their times, so a few of them are read, however many there are.
    """
    last_step: int | None = None
    try:
        with paths.rank_metrics(0).open("rb") as file:
            low, high = 0, file.seek(0, os.SEEK_END)
            while low < high:
                middle = (low + high) // 2
                row, begins = _row_after(file, middle)
                step, time = row.get("step"), row.get("time")
                if type(step) is int and isinstance(time, int | float) and time <= at:
                    last_step, low = step, begins + 1
                else:
                    high = middle
    except OSError:
        return None
    return last_step


def _row_after(file: BinaryIO, offset: int) -> tuple[dict[str, Any], int]:
    """The first line that begins at `offset` or later, and where it begins."""
    file.seek(max(0, offset - 1))
    if offset:
        file.readline(_MAX_LINE)
    begins = file.tell()
    return parse_line(file.readline(_MAX_LINE))[0] or {}, begins


def _end(paths: RunPaths) -> float:
    """When a run was last at work; infinite while it may still be."""
    ended = (read_json(paths.exit) or {}).get("ended_at")
    if isinstance(ended, int | float):
        return float(ended)
    if read_status(paths).live:
        return float("inf")
    beat = (read_json(paths.state) or {}).get("heartbeat")
    last = float(beat) if isinstance(beat, int | float) else 0.0
    for folder in (paths.metrics, paths.logs):  # ranks outlive a supervisor that was killed
        try:
            last = max([last, *(entry.stat().st_mtime for entry in os.scandir(folder))])
        except OSError:
            continue
    return last


class Owners:
    """Tells a run's own checkpoints from those of others in the same store."""

    def __init__(self, paths: RunPaths, run: RunRecord) -> None:
        self._paths = paths
        self._own = saver(paths, run)

    def is_outside(self, path: Path) -> bool:
        """Whether `path` lies neither in the run's folder nor where its arguments name."""
        return self._paths.directory not in path.parents and not self._own.depth(path)

    def was_at_work(self, at: float) -> bool:
        """Whether the run may have written something at that time, in Unix seconds."""
        return self._own.was_at_work(at)

    @property
    def places(self) -> tuple[Path, ...]:
        """What the run's own arguments name."""
        return self._own.named

    @cached_property
    def _other_savers(self) -> list[Saver]:
        """Read when a checkpoint is found, which most runs of the store never need."""
        savers = list[Saver]()
        try:
            entries = sorted(entry.name for entry in os.scandir(self._paths.directory.parent))
        except OSError:
            return savers
        for name in entries:
            other = RunPaths(self._paths.directory.parent / name)
            if name == self._own.name or not names.is_id(name) or other.directory.is_symlink():
                continue
            run = read_run(other)
            if run is not None and run.rehearsal is None:
                savers.append(saver(other, run))
        return savers

    def _by_step(self, other: Saver, step: int | None, saved_at: float) -> bool:
        """Whether the step tells: it is the one that the run had done then, and not the other's."""
        its = step_at(RunPaths(self._paths.directory.parent / other.name), saved_at)
        if step is None or its is None or abs(its - step) < _FAR:
            return False
        own = step_at(self._paths, saved_at)
        return own is not None and abs(own - step) <= _NEAR

    def why_not_own(self, path: Path, step: int | None, saved_at: float) -> str | None:
        """Why it is in doubt that the run wrote `path`; "" = it did, None = another run did."""
        if self._paths.directory in path.parents:
            return ""
        own, depth = self._own.was_at_work(saved_at), self._own.depth(path)
        doubt = "" if own else f"it was written while {self._own.name} was not running"
        for other in self._other_savers:
            if not other.reaches(path) or not other.was_at_work(saved_at):
                continue
            closer = other.depth(path)
            if closer > depth and path not in other.named:  # a file that is named may be read
                return None
            if (closer == depth or not own) and not self._by_step(other, step, saved_at):
                doubt = f"{other.name} was running in the same folder when it was written"
        return doubt
