"""Keeps the account of one optimizer step and appends one JSON line per step. Never raises."""

from __future__ import annotations

import collections
import contextlib
import io
import json
import os
import time
from typing import Any

_STOP_POLL_SECONDS = 0.2
_MEMORY_POLL_SECONDS = 1.0
_MAX_PENDING_BYTES = 1 << 20
_MAX_PENDING_LINES = 100_000  # lines kept in memory while the disk refuses them (about 20 MB)


def current_rss_peak() -> int | None:
    """Peak resident memory of this program (VmHWM: ru_maxrss would count the launcher's too)."""
    with contextlib.suppress(OSError, ValueError), open("/proc/self/status", "rb") as file:
        for line in file:
            if line.startswith(b"VmHWM:"):
                return int(line.split()[1]) * 1024
    return None


class LineWriter:
    """Appends lines; a full disk keeps them waiting, a torn write is continued where it tore."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._file: int | None = None
        self._pending: collections.deque[bytes] = collections.deque()
        self.dropped = 0

    def write(self, line: bytes) -> None:
        """Append `line` (newline included), or keep it for the next call."""
        self._pending.append(line)
        if len(self._pending) > _MAX_PENDING_LINES:
            # The first one may be the rest of a torn line, which must stay.
            del self._pending[1]
            self.dropped += 1
        with contextlib.suppress(OSError):
            self._flush()

    def _flush(self) -> None:
        if self._file is None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            self._file = os.open(self._path, flags, 0o644)
        while self._pending:
            written = os.write(self._file, self._pending[0])
            if written < len(self._pending[0]):
                self._pending[0] = self._pending[0][written:]
            else:
                self._pending.popleft()


class PatientFile(io.RawIOBase):
    """A file descriptor for logs: while the disk refuses, output waits, the oldest is given up."""

    def __init__(self, descriptor: int, name: str) -> None:
        super().__init__()
        self.name = name
        self._descriptor = descriptor
        self._pending = b""

    def fileno(self) -> int:
        """The descriptor itself, for programs that the script starts."""
        return self._descriptor

    def writable(self) -> bool:
        """Always."""
        return True

    def write(self, data: Any) -> int:
        """Take all of `data`; what the disk refuses is tried again with the next call."""
        self._pending += bytes(data)
        with contextlib.suppress(OSError):
            while self._pending:
                self._pending = self._pending[os.write(self._descriptor, self._pending) :]
        self._pending = self._pending[-_MAX_PENDING_BYTES:]
        return len(data)


class Recorder:
    """One rank's account: the current step's losses and times, and the lines already due."""

    def __init__(self, run_directory: str, rank: int) -> None:
        self.steps = 0
        self.owner = os.getpid()
        self.accelerator: Any = None  # the script's Accelerator, when it has one
        self.reader: Any = None  # patches.ScalarReader once torch is there
        self.stopped_at: int | None = None
        self.checkpoint: str | None = None
        self.world_size: int | None = None
        self._writer = LineWriter(os.path.join(run_directory, "metrics", f"rank-{rank}.jsonl"))
        self._start_file = os.path.join(run_directory, "metrics", f"rank-{rank}.start.json")
        self._stop_file = os.path.join(run_directory, "control", "stop-at")
        self._stop_at: int | None = None
        self._next_stop_poll = 0.0
        self._next_memory_poll = 0.0
        self._memory: int | None = None
        # Bounded: a script without a torch optimizer never takes a step that would empty it.
        self._losses: collections.deque[Any] = collections.deque(maxlen=1024)
        self._grad_norm: Any = None
        self._backward_at: float | None = None
        self._previous_end: float | None = None

    def backward(self, loss: Any) -> None:
        """A backward pass begins (the caller makes sure it is the outermost one)."""
        self._backward_at = time.time()
        if self.reader is not None:
            value = self.reader.scalar(loss)  # detached: neither graph nor storage is kept alive
            if value is not None:
                self._losses.append(value)

    def grad_norm(self, norm: Any) -> None:
        """The gradient norm that the script computed before this step."""
        self._grad_norm = norm

    def step(self, lr: float | None) -> None:
        """An optimizer step ended. A second optimizer without a backward of its own is no step."""
        if self._backward_at is None or os.getpid() != self.owner:
            return
        now = time.time()
        self.steps += 1
        line: dict[str, Any] = {"step": self.steps, "time": round(now, 6)}
        if self._previous_end is not None:
            line["step_seconds"] = round(now - self._previous_end, 6)
        line["backward_at"] = round(self._backward_at, 6)
        if lr is not None:
            line["lr"] = lr
        memory = self._memory_bytes(now)
        if memory is not None:
            line["memory_bytes"] = memory
        self._previous_end = now
        losses, norm = list(self._losses), self._grad_norm
        self._losses.clear()
        self._grad_norm = self._backward_at = None
        if self.reader is None:
            self._emit(line)
        else:
            for ready in self.reader.add(line, losses, norm):
                self._emit(ready)

    def drain(self) -> None:
        """Write what still waits for a device; called once, at the end."""
        if self.reader is not None and os.getpid() == self.owner:
            for ready in self.reader.drain():
                self._emit(ready)

    def stop_due(self) -> bool:
        """Whether the step that all ranks agreed to stop at lies behind this rank."""
        now = time.monotonic()
        if self._stop_at is None and now >= self._next_stop_poll:
            self._next_stop_poll = now + _STOP_POLL_SECONDS
            with contextlib.suppress(OSError, ValueError), open(self._stop_file) as file:
                wanted = int(file.read())
                # A step that lies behind was chosen from old news: the others may have run past
                # it too. The supervisor sees that nobody stops and names a later one.
                self._stop_at = wanted if wanted >= self.steps else None
        return self._stop_at is not None and self.steps >= self._stop_at

    def group_ready(self, world_size: int, backend: str) -> None:
        """The process group exists: record its real size, which may not be the one asked for."""
        self.world_size = world_size
        with contextlib.suppress(OSError, ValueError):
            with open(self._start_file, encoding="utf-8") as file:
                document = json.load(file)
            document.update(group_world_size=world_size, backend=backend)
            temporary = f"{self._start_file}.tmp"
            with open(temporary, "w", encoding="utf-8") as file:
                json.dump(document, file)
            os.replace(temporary, self._start_file)

    def end_fields(self) -> dict[str, Any]:
        """What the end record says beside the exception."""
        return {
            "stopped_at": self.stopped_at,
            "checkpoint": self.checkpoint,
            "group_world_size": self.world_size,
        }

    def _memory_bytes(self, now: float) -> int | None:
        device_memory = self.reader.device_memory() if self.reader is not None else None
        if device_memory is not None:
            return device_memory
        if now >= self._next_memory_poll:
            self._next_memory_poll = now + _MEMORY_POLL_SECONDS
            self._memory = current_rss_peak()
        return self._memory

    def _emit(self, line: dict[str, Any]) -> None:
        self._writer.write(json.dumps(line, separators=(",", ":")).encode() + b"\n")
