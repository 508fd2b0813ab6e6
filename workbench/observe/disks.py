"""The disks that a run writes to beside the one of its own directory."""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from workbench.describe.bounded_calls import BoundedCalls
from workbench.store.layout import RunPaths
from workbench.store.record import read_run
from workbench.store.room import nearest_existing, shortage
from workbench.store.run_record import RunRecord
from workbench.store.schema import DiskSample

_PAUSE_SECONDS = 5.0
_ANSWER_SECONDS = 1.0
_LAST_ANSWER_SECONDS = 5.0
_MAX_FOLDERS = 8
_NEAR_BYTES = 64 << 20
_WRITTEN = re.compile(
    r"--?([\w-]*[-_])?(out|output|save|saves|checkpoint|checkpoints|ckpt|log|logs|logging|cache|"
    r"root|work|project)([-_](dir|directory|folder|path|root|to))*",
    re.IGNORECASE,
)
"""Options whose value is a folder that a script writes to."""


def written_folders(run: RunRecord, environment: Mapping[str, str] | None = None) -> list[Path]:
    """Where its programs usually write, beside the run's directory; some may not be there yet.

    The working directory, temporary files, Hugging Face's cache, and the folders that the script's
    arguments name for output, checkpoints, logs or caches. `environment`: of this process by
    default; what was given for the run counts more.
    """
    variables = {**(os.environ if environment is None else environment)}
    variables |= run.extra_environment or {}
    here = Path(run.working_directory or ".")
    cache = variables.get("HF_HUB_CACHE") or variables.get("HF_HOME") or "~/.cache/huggingface"
    places = [
        here,
        *(here / _home(word, variables) for word in _named(run.arguments, here)),
        Path(variables.get("TMPDIR") or tempfile.gettempdir()),
        here / _home(cache, variables),
    ]
    return list(dict.fromkeys(places))[:_MAX_FOLDERS]


def _home(word: str, variables: Mapping[str, str]) -> str:
    """`word` with the user's own folder for a leading ``~``."""
    return re.sub(r"^~(?=/|$)", lambda _: variables.get("HOME") or "~", word)


def _named(arguments: Sequence[str], here: Path) -> Iterator[str]:
    """The folders that options such as ``--output_dir`` give."""
    for position, word in enumerate(arguments):
        option, separator, value = word.partition("=")
        if not _WRITTEN.fullmatch(option):
            continue
        if not separator:
            value = arguments[position + 1] if position + 1 < len(arguments) else ""
        if not value or value.startswith("-") or "://" in value:
            continue
        if "/" in value or (here / value).is_dir():
            yield value


def first_shortage(paths: RunPaths) -> str:
    """What the run's disk, or another that it writes to, lacks: a clause; "" = all have room."""
    run = read_run(paths)
    folders = [paths.directory, *(written_folders(run) if run is not None else ())]
    full = BoundedCalls(_LAST_ANSWER_SECONDS).ask(lambda: list(map(shortage, folders)))
    return next(filter(None, full or ()), "")


class OtherDisks:
    """Reads them now and then. A disk that does not answer is left out, and not waited for."""

    def __init__(self, run: RunRecord, directory: Path) -> None:
        """`directory`: the run's own, whose disk is no other one."""
        self._directory = directory
        self._folders = written_folders(run)
        self._calls = BoundedCalls(_ANSWER_SECONDS)
        self._read_at: float | None = None
        self._latest: list[DiskSample] = []

    def sample(self) -> list[DiskSample]:
        """One entry for each other disk, as it was at most some seconds ago."""
        now = time.monotonic()
        if self._read_at is None or now - self._read_at >= _PAUSE_SECONDS:
            self._read_at = now
            self._latest = self._calls.ask(self._read) or []
        return self._latest

    def _read(self) -> list[DiskSample]:
        return other_disks(self._directory, self._folders)


def other_disks(directory: Path, folders: Sequence[Path]) -> list[DiskSample]:
    """The disks of `folders` that can be written to, each once, without that of `directory`."""
    seen, samples = [_disk(directory)], list[DiskSample]()
    for folder in folders:
        try:
            disk = _disk(nearest_existing(folder))
        except OSError:
            continue
        if not any(disk.is_part_of(other) for other in seen) and not disk.read_only:
            free, total = disk.free, disk.total
            samples.append({"path": str(folder), "free_bytes": free, "total_bytes": total})
        seen.append(disk)
    return samples


class _Disk(NamedTuple):
    device: int
    free: int  # bytes
    total: int
    read_only: bool

    def is_part_of(self, other: _Disk) -> bool:
        """Whether both are one disk: parts of a Btrfs or ZFS pool have devices of their own."""
        near = self.total == other.total and abs(self.free - other.free) < _NEAR_BYTES
        return near or self.device == other.device


def _disk(folder: Path) -> _Disk:
    state = os.statvfs(folder)
    return _Disk(
        device=folder.stat().st_dev,
        free=state.f_bavail * state.f_frsize,
        total=state.f_blocks * state.f_frsize,
        read_only=not state.f_blocks or bool(state.f_flag & os.ST_RDONLY),
    )
