"""Where this rank is right now, in 64 bytes that another process reads without asking it.

Written with ``pwrite`` instead of through a mapping: the block is allocated once, and a disk that
refuses then returns an error, where a mapping would end the training with SIGBUS.
"""

from __future__ import annotations

import contextlib
import os
import struct
import time

from .writers import file_of

FORMAT = struct.Struct("<8sQIIdd24x")  # store.schema.PULSE_FORMAT; a test holds them together
MAGIC = b"WBPULSE1"
STARTING, FORWARD, BACKWARD, SAVING, ENDED = range(5)  # store.schema.PULSE_PHASES


_WRITE_SECONDS = 0.05
_AT_ONCE = {STARTING, SAVING, ENDED}


class Pulse:
    """One rank's pulse. It never raises.

    A system call between two steps costs 30 us, because nothing of it is in the cache. So a rank
    that continues quickly writes at most every 50 ms, and the thread that writes its lines calls
    `flush` for what came after that. Only a main thread that holds the interpreter for good within
    these 50 ms leaves an older phase in the file.
    """

    def __init__(self, path: str) -> None:
        self.phase = STARTING
        self.steps = 0
        self._beats = self._written = 0
        self._monotonic = 0.0
        self._next_write = 0.0
        self._path = path
        self._opened: tuple[int, int] | None = None
        self._file = self._open()
        self.beat(STARTING, 0)

    def _open(self) -> int | None:
        with contextlib.suppress(OSError):
            file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
            self._opened = file_of(file)
            return file
        return None

    def beat(self, phase: int, steps: int) -> None:
        """Tell where this rank is: its phase, and how many optimizer steps lie behind it."""
        now = time.monotonic()
        self.phase, self.steps, self._monotonic = phase, steps, now
        self._beats += 1
        if now >= self._next_write or phase in _AT_ONCE:
            self.flush()

    def flush(self) -> None:
        """Write the latest beat, unless it is in the file."""
        beats, monotonic = self._beats, self._monotonic
        file = self._file
        if file is None or beats == self._written:
            return
        self._next_write = monotonic + _WRITE_SECONDS
        if file_of(file) != self._opened:
            file = self._file = self._open()
            if file is None:
                return
        wall = time.time() - (time.monotonic() - monotonic)
        try:
            content = FORMAT.pack(MAGIC, beats, self.steps, self.phase, wall, monotonic)
            os.pwrite(file, content, 0)
        except (OSError, struct.error):
            return
        # Of two threads the later one may have written the older beat: the next flush corrects it.
        self._written = beats
