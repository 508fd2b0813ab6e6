"""Running out of memory: whether the kernel killed a process for it, what filled it, what to do.

A process killed for memory leaves no word, only signal 9, which anybody may have sent. The counter
``oom_kill`` of its control group (v2: memory.events, v1: memory.oom_control) tells the two apart.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection
from itertools import pairwise
from pathlib import Path
from typing import cast

from workbench.diagnose import known_errors
from workbench.errors import WorkbenchError
from workbench.observe.summary import predicted_memory
from workbench.store.files import parse_line, read_json, read_tail, write_json_atomic
from workbench.store.layout import RunPaths
from workbench.store.record import read_run
from workbench.store.run_record import RunRecord
from workbench.units import format_bytes

_GROUPS = Path("/sys/fs/cgroup")
_COUNT = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)
_HOST = Path("/proc/vmstat")  # of the whole machine, where groups keep no count
_MOVED_SECONDS = 5.0  # between two looks at which groups a rank is in
_SWITCHES = 3
_METRICS_BYTES = 200_000  # of a rank: its latest steps
_LEAK_STEPS, _LEAK_GROWTH = 6, 1.5  # at least; of the memory at their begin
_LEAK_EVEN = 0.5  # of the growth a step in one half, what it is in the other
_ALLOCATION = re.compile(
    r"Tried to allocate ([\d.]+ [KMGT]iB)|tried to allocate (\d+) bytes", re.IGNORECASE
)


class OomKills:
    """Remembers the counters at the start, and what they became."""

    def __init__(self, paths: RunPaths) -> None:
        self._file = _file(paths)
        self._first: dict[str, int] = {}
        self._last: dict[str, int] = {}
        self._watched: set[int] = set()
        self._due = 0.0
        self._read("self")

    def watch(self, pids: Collection[int], now: float) -> None:
        """Also follow the groups that these ranks are in at `now`, on the monotonic clock.

        A new rank's at once; those of the others now and then, since a rank may be moved.
        """
        if now >= self._due:
            self._due = now + _MOVED_SECONDS
            self._watched.clear()
        for pid in pids:
            if pid not in self._watched:
                self._watched.add(pid)
                self._read(str(pid))

    def look(self) -> None:
        """Read the counters again: a group that is removed with its last process takes them."""
        for name in self._first:
            count = _count(Path(name))
            if count is not None and count > self._last[name]:
                self._last[name] = count
                self._keep()

    def _read(self, pid: str) -> None:
        for path in _counters(pid):
            count = _count(path)
            if count is not None and str(path) not in self._first:
                self._first[str(path)] = self._last[str(path)] = count
                self._keep()

    def _keep(self) -> None:
        with contextlib.suppress(OSError):
            write_json_atomic(self._file, {"first": self._first, "last": self._last})


def killed_for_memory(paths: RunPaths) -> int | None:
    """Kills for memory since the run began, in its groups; None where no counter is known."""
    document = read_json(_file(paths)) or {}
    first, last = document.get("first"), document.get("last")
    if not isinstance(first, dict) or not isinstance(last, dict) or not first:
        return None
    before, after = cast("dict[str, int]", first), cast("dict[str, int]", last)
    with contextlib.suppress(TypeError):
        grown = [
            max(_count(Path(name)) or 0, after.get(name, 0)) - count
            for name, count in before.items()
        ]
        return max(0, *grown)
    return None


def _file(paths: RunPaths) -> Path:
    return paths.control / "oom-kills.json"


def _counters(pid: str) -> list[Path]:
    """Counter files of the memory groups that a process is in, else the machine's own."""
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    except OSError:
        return []
    counters: list[Path] = []
    for line in lines:
        _, _, fields = line.partition(":")
        controllers, _, group = fields.partition(":")
        if not controllers:
            counters += _upwards(_GROUPS, group, "memory.events")
        elif "memory" in controllers.split(","):
            counters += _upwards(_GROUPS / "memory", group, "memory.oom_control")
    return counters or [_HOST]


def _upwards(root: Path, group: str, name: str) -> list[Path]:
    """The innermost group's file that can be seen: a container sees its own group as the root."""
    own = root / group.strip("/") / name
    return [next((path for path in (own, root / name) if path.exists()), own)]


def _count(path: Path) -> int | None:
    try:
        match = _COUNT.search(path.read_text())
    except (OSError, ValueError):
        return None
    return int(match[1]) if match else None


def memory_action(paths: RunPaths, rank: int | None) -> str:
    """The general advice, with the numbers of this model where it is known."""
    run, leak = read_run(paths) or RunRecord(), _leak(paths, rank or 0)
    if leak:
        return leak
    general = known_errors.KNOWN[0].next
    parts = _largest_parts(run)
    filled = f" Largest estimated parts: {parts}." if parts else ""
    return f"{general}{filled} {_switches(run)}".rstrip()


def _leak(paths: RunPaths, rank: int) -> str:
    """What to do where the rank's memory grew by as much in each step; "" where it did not."""
    rows: list[tuple[int, int]] = []
    for text in read_tail(paths.rank_metrics(rank), _METRICS_BYTES).splitlines():
        line, _ = parse_line(text.encode())
        step, memory = (line or {}).get("step"), (line or {}).get("memory_bytes")
        if isinstance(step, int) and isinstance(memory, int):
            rows.append((step, memory))
    rows = rows[1:]  # the first step makes the optimizer's states
    if len(rows) < _LEAK_STEPS:
        return ""
    marks = [rows[0], rows[len(rows) // 2], rows[-1]]
    (first, low), (middle, _), (last, high) = marks
    if not first < middle < last or high < _LEAK_GROWTH * low:
        return ""
    slopes = [(after[1] - before[1]) / (after[0] - before[0]) for before, after in pairwise(marks)]
    if min(slopes) < _LEAK_EVEN * max(slopes):
        return ""
    grown = (high - low) / (last - first)
    return (
        f"Its memory grew by {format_bytes(grown)} a step, from {format_bytes(low)} at step "
        f"{first} to {format_bytes(high)} at step {last}: something keeps what each step makes, "
        "such as a list of losses without .item(), outputs without .detach(), or a cache. A "
        "smaller micro-batch only delays that."
    )


def _largest_parts(run: RunRecord) -> str:
    """``activations: blocks 3.1 GiB, optimizer states 2.0 GiB``; "" where nothing is predicted."""
    parts = predicted_memory(run.predicted).get("parts") or {}
    largest = sorted(parts, key=lambda name: -parts[name])[:2]
    return ", ".join(f"{name} {format_bytes(parts[name])}" for name in largest)


def _switches(run: RunRecord) -> str:
    """The switches that save most without changing the result; "" where the model is unknown."""
    from workbench.describe.job import Job  # noqa: PLC0415
    from workbench.estimate.sizing.switch import RESULT, switches  # noqa: PLC0415  (only after an OOM)

    try:
        candidates = switches(Job.recorded(run.document()))
    except WorkbenchError:
        return ""
    lossless = [switch for switch in candidates if switch.tier < RESULT]
    saves = [
        f"{switch.name} saves {format_bytes(switch.saves_bytes)} ({switch.option})"
        for switch in lossless[:_SWITCHES]
    ]
    return "Estimated savings: " + ", ".join(saves) + "." if saves else ""


def requested_bytes(text: str) -> str:
    """``; it requested 2.00 GiB`` where `text` has the size of an allocation that failed."""
    match = _ALLOCATION.search(text)
    if match is None:
        return ""
    return f"; it requested {match[1] or format_bytes(int(match[2]))}"


def peak_memory(paths: RunPaths) -> str:
    """The most memory that the run's processes had in the samples."""
    lines = re.findall(r'"run_rss_bytes":(\d+)', read_tail(paths.system, 200_000))
    return f", the run's processes held up to {format_bytes(max(map(int, lines)))}" if lines else ""
