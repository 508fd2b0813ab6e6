"""What kept this rank from computing: waiting for a core, being stopped, its cgroup's quota.

Three times a step the training thread copies the kernel's counters of itself (2 µs each); the
thread that reads the flight recorder makes numbers of them. A thread that always sleeps wakes only
when the whole process is stopped and continued: its count of turns on a core tells how often.
"""

from __future__ import annotations

import collections
import contextlib
import os
import threading

_MAX_STEPS = 512  # steps
_LOOKS = 64
_OWN = "/proc/thread-self/schedstat"  # seconds on a core, seconds waited for one (ns), turns
_GROUPS = ("/sys/fs/cgroup", "/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct")


class CoreTime:
    """Counters of one rank. It never raises."""

    def __init__(self) -> None:
        self.on = False  # whether there are other ranks; the caller asks, as each call costs
        self.steps: collections.deque[tuple[int, ...]] = collections.deque(maxlen=_MAX_STEPS)
        """Step, then microseconds on a core and waited for one, at the entry of its backward pass,
        of its optimizer and at its end; since the thread began."""
        self.looks: collections.deque[tuple[float, int, int]] = collections.deque(maxlen=_LOOKS)
        self._new: collections.deque[tuple[int, bytes, bytes, bytes]] = collections.deque(
            maxlen=_MAX_STEPS
        )
        self._entered = self._optimizing = b""
        self._own: int | None = None
        self._opened = False
        self._sleeper: int | None = None
        self._quota: _Quota | None = None

    def backward(self) -> None:
        """The backward pass is entered; like the next two called in the thread that trains."""
        self._entered, self._optimizing = self._counters(), b""

    def optimizing(self) -> None:
        """The optimizer is entered, for the first time in this step."""
        self._optimizing = self._counters()

    def step(self, step: int) -> None:
        """A step ended."""
        if self._entered:
            end = self._counters()
            self._new.append((step, self._entered, self._optimizing or end, end))
            self._entered = b""

    def _counters(self) -> bytes:
        if not self._opened:
            self._opened, self._own = True, _opened(_OWN)
        if self._own is not None:
            with contextlib.suppress(OSError):
                return os.pread(self._own, 64, 0)
        return b""

    def look(self, now: float) -> bool:
        """Take in what is new; whether there was a step. Not called by the training's thread."""
        if not self.looks:
            self._begin()
        self.looks.append((now, self._turns(), self._quota.throttled() if self._quota else 0))
        stepped = bool(self._new)
        while self._new:
            step, *texts = self._new.popleft()
            if all(texts):
                counters = (int(part) // 1000 for text in texts for part in text.split()[:2])
                self.steps.append((step, *counters))
        return stepped

    def _begin(self) -> None:
        never = threading.Lock()
        never.acquire()
        sleeper = threading.Thread(target=never.acquire, name="workbench-sleeps", daemon=True)
        sleeper.start()
        self._sleeper = _opened(f"/proc/self/task/{sleeper.native_id}/schedstat")
        self._quota = _Quota()

    def _turns(self) -> int:
        """Of the sleeping thread: about two each time that the process was stopped."""
        return 0 if self._sleeper is None else int(os.pread(self._sleeper, 64, 0).split()[2])


class _Quota:
    """For how long a CPU quota held this process back, in whichever cgroup it was."""

    def __init__(self) -> None:
        self._own = _opened("/proc/self/cgroup")
        self._groups = b""
        self._stat: int | None = None
        self._total = self._seen = 0

    def throttled(self) -> int:
        """Microseconds since the first call."""
        groups = b"" if self._own is None else os.pread(self._own, 4096, 0)
        self._add()
        if groups != self._groups:  # schedulers move a process that already runs
            self._move(groups)
        return self._total

    def _move(self, groups: bytes) -> None:
        if self._stat is not None:
            os.close(self._stat)
        self._groups, folder = groups, _group_folder(groups.decode())
        self._stat = None if folder is None else _opened(os.path.join(folder, "cpu.stat"))
        self._seen = self._counter() or 0

    def _add(self) -> None:
        now = self._counter()
        if now is not None:  # else the cgroup is gone
            self._total, self._seen = self._total + now - self._seen, now

    def _counter(self) -> int | None:
        with contextlib.suppress(OSError):
            for line in os.pread(self._stat, 1024, 0).split(b"\n") if self._stat else ():
                name, _, value = line.partition(b" ")
                if name in {b"throttled_usec", b"throttled_time"}:  # cgroup 2, cgroup 1 in ns
                    return int(value) // (1 if name == b"throttled_usec" else 1000)
        return None


def queued_seconds() -> float | None:
    """For which all threads of this process together waited for a core; None = not known."""
    total = 0
    try:
        with os.scandir("/proc/self/task") as threads:
            for thread in threads:
                with open(f"{thread.path}/schedstat", "rb") as file:
                    total += int(file.read().split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return total / 1e9


def _group_folder(groups: str) -> str | None:
    """The CPU controller's, of a process with these lines in its `/proc/PID/cgroup`."""
    for _, names, path in (line.split(":", 2) for line in groups.splitlines()):
        if not names or "cpu" in names.split(","):
            for root in _GROUPS:
                if os.path.exists(f"{root}{path}/cpu.stat"):
                    return root + path
    return None


def _opened(path: str) -> int | None:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
