"""Where each rank's Python is: asked for by a signal, read from a file, and put into words.

A thread of the capture hook writes them where it can run (`request_stacks`): no frame changes
meanwhile. Where it cannot, something in C holds the interpreter: then `ask` by `STACK_SIGNAL`, for
which the hook registers `faulthandler`. Its handler runs in C; sent to a thread that runs Python it
may meet a half-made frame and crash the rank.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

from workbench.diagnose.frames import UNKNOWN_TREE, CodeTree, code_tree
from workbench.store import processes
from workbench.store.files import read_tail
from workbench.store.layout import RunPaths
from workbench.store.rank_records import RankStart
from workbench.store.record import read_start
from workbench.store.schema import STACK_SIGNAL, ProcessDoc

_MAX_BYTES = 400_000
_HEAD = re.compile(r"^(Current thread|Thread) 0x[0-9a-f]+", re.MULTILINE)
_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)$', re.MULTILINE)
# Where every main thread began, or where faulthandler cut a deep one short.
_MAIN_END = re.compile(r"( in (<module>|_run_code|_run_module_as_main)|\n  \.\.\.)\n\s*\Z")
_COLLECTIVES = re.compile(
    r"^(barrier|monitored_barrier|all_reduce|all_gather\w*|_all_gather_base|reduce\w*|broadcast\w*|"
    r"gather\w*|scatter\w*|all_to_all\w*|send|recv|batch_isend_irecv|_reduce_scatter_base)$"
)
_PLACES = (
    ("torch/_dynamo", "compiling"),
    ("torch/_inductor", "compiling"),
    ("torch/serialization", "saving"),
    ("safetensors", "saving"),
    ("torch/nn/parallel/", "forward"),
    ("torch/nn/modules", "forward"),
)
_LOADER = "torch/utils/data/"
# What a call of a library waits for, by a file that it is in; the more telling file comes first.
_WAITS = (
    (_LOADER, "its data loader"),
    ("/subprocess.py", "a program that it started"),
    ("multiprocessing/popen_", "a process that it started"),
    ("multiprocessing/pool.py", "a worker of its multiprocessing pool"),
    ("multiprocessing/queues.py", "an item of a multiprocessing queue"),
    ("multiprocessing/managers.py", "a multiprocessing manager"),
    ("multiprocessing/connection.py", "a message of another process"),
    ("multiprocessing/synchronize.py", "another process"),
    ("concurrent/futures/", "a future (concurrent.futures)"),
    ("/queue.py", "an item of a queue"),
    ("/asyncio/", "its asyncio event loop"),
    ("/ssl.py", "an answer over the network"),
    ("/socket.py", "a connection or an answer over the network"),
    ("/pdb.py", "a command to its debugger"),
    ("/threading.py", "another thread"),
    ("/selectors.py", "a file or a connection"),
)


@dataclass(frozen=True, slots=True)
class Frame:
    """One call on a stack."""

    path: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{os.path.basename(self.path)}:{self.line} in {self.function}"  # noqa: PTH119


@dataclass(frozen=True, slots=True)
class Stack:
    """The main thread of a rank, innermost call first."""

    frames: tuple[Frame, ...]
    tree: CodeTree = UNKNOWN_TREE
    """Where the script's own code lies."""

    @property
    def own(self) -> Frame | None:
        """The innermost call of the user's own code, outside Python's and installed libraries."""
        at = self._own_index
        return self.frames[at or 0] if self.frames else None

    @property
    def _own_index(self) -> int | None:
        at = self.tree.user_frame([frame.path for frame in reversed(self.frames)])
        return None if at is None else len(self.frames) - 1 - at

    @property
    def _called(self) -> tuple[Frame, ...]:
        """What the innermost call of the user's own code has called."""
        return self.frames[: self._own_index]

    @property
    def awaited(self) -> str | None:
        """What the user's own call waits for, as its frames tell: ``an item of a queue``."""
        paths = [frame.path for frame in self._called]
        return next((name for part, name in _WAITS if any(part in path for path in paths)), None)

    @property
    def collective(self) -> str | None:
        """The collective the rank is in, as the script called it."""
        inside = [frame.function for frame in self.frames if "distributed_c10d" in frame.path]
        called = [name for name in inside if _COLLECTIVES.match(name)]
        return called[-1] if called else None

    @property
    def action(self) -> str:
        """What it is doing: a collective, backward, forward, data loading, a function."""
        if self.collective is not None:
            return self.collective
        if any(_LOADER in frame.path for frame in self._called):
            return "data loading"
        for frame in self.frames:
            if frame.function == "_engine_run_backward":
                return "backward"
            action = next((name for part, name in _PLACES if part in frame.path), None)
            if action is not None:
                return action
        return self.frames[0].function if self.frames else "an unknown place"

    @property
    def waits_for_program(self) -> bool:
        """Whether it waits for a program that it started itself."""
        return any(os.path.basename(frame.path) == "subprocess.py" for frame in self.frames)  # noqa: PTH119

    @property
    def waits_for_peers(self) -> bool:
        """Whether it stands in a call that other ranks must join (a backward of several ranks)."""
        return self.collective is not None or self.action == "backward"

    @property
    def may_wait_for_peers(self) -> bool:
        """Whether what it called may wait for other ranks in C: forming a group, wrapping."""
        inside = ("torch/distributed/", "torch/nn/parallel/")
        called = any(part in frame.path for frame in self._called for part in inside)
        return self.waits_for_peers or called

    @property
    def place(self) -> str:
        """``barrier at train.py:31``."""
        own = self.own
        if own is None:
            return self.action
        action = f"{self.action}()" if self.action == own.function else self.action
        return f"{action} at {self.tree.display_path(own.path)}:{own.line}"

    @property
    def group(self) -> tuple[str, str]:
        """Equal for ranks that stand at the same place."""
        return self.action, str(self.own)


def request_stacks(paths: RunPaths, ranks: Iterable[int]) -> dict[int, int]:
    """Ask ranks in which a thread of Python runs; where the answer of each will begin."""
    offsets = dict[int, int]()
    for rank in ranks:
        with contextlib.suppress(OSError):
            offsets[rank] = paths.rank_stack(rank).stat().st_size
    with contextlib.suppress(OSError):
        (paths.control / "stacks").touch()
    return offsets


def ask(paths: RunPaths, rank: int, process: ProcessDoc | None) -> int | None:
    """Ask a rank by signal; the answer begins at the returned offset of its stack file.

    None: it cannot be asked. The signal would end a process that has no handler for it, so the
    kernel is asked first whether there is one.
    """
    path = paths.rank_stack(rank)
    if process is None or not path.exists() or not _catches(process["pid"]):
        return None
    if not processes.is_alive(process) or processes.is_stopped(process):
        return None
    with contextlib.suppress(OSError):
        offset = path.stat().st_size
        os.kill(process["pid"], STACK_SIGNAL)
        return offset
    return None


def _catches(pid: int) -> bool:
    with contextlib.suppress(OSError, ValueError, IndexError):
        status = Path(f"/proc/{pid}/status").read_text()
        caught = int(status.split("SigCgt:")[1].split(None, 1)[0], 16)
        return bool(caught >> (STACK_SIGNAL - 1) & 1)
    return False


def answer(paths: RunPaths, rank: int, offset: int) -> Stack | None:
    """The main thread's stack in what a rank appended after `offset`; None while it is silent."""
    try:
        with paths.rank_stack(rank).open("rb") as file:
            file.seek(offset)
            text = file.read(_MAX_BYTES).decode("utf-8", errors="replace")
    except OSError:
        return None
    return parse(text, rank_tree(paths, rank))


def rank_tree(paths: RunPaths, rank: int) -> CodeTree:
    """Where the code of a rank's script lies, as the rank told at its start."""
    return _tree(json.dumps((read_start(paths, rank) or RankStart()).code))


@functools.lru_cache(maxsize=64)
def _tree(code: str) -> CodeTree:
    document = json.loads(code)
    return code_tree(cast("dict[str, Any]", document) if isinstance(document, dict) else None)


def parse(text: str, tree: CodeTree = UNKNOWN_TREE) -> Stack | None:
    """The main thread of a faulthandler dump; None until all of it is there.

    The dump grows frame by frame, the main thread's come last: what is read meanwhile ends among
    the frames of a thread that is none of the script's business.
    """
    starts = [match.start() for match in _HEAD.finditer(text)]
    parts = [text[a:b] for a, b in pairwise([*starts, len(text)])]
    dumps = (part for part in reversed(parts) if _MAIN_END.search(part))
    frames = [Frame(path, int(line), name) for path, line, name in _FRAME.findall(next(dumps, ""))]
    return Stack(tuple(frames), tree) if frames else None


def crashed(log: str, tree: CodeTree = UNKNOWN_TREE) -> Stack | None:
    """The thread that crashed, of what faulthandler wrote to `log` as the process died.

    Where a thread without Python did (gloo's own), the main thread, which is written last.
    """
    _, _, text = log.rpartition("Fatal Python error: ")
    _, _, frames = text.partition("Current thread 0x")
    frames = frames or text.rpartition("\nThread 0x")[2]
    stacks = [
        Frame(path, int(line), name)
        for path, line, name in _FRAME.findall(frames.partition("\n\n")[0])
    ]
    return Stack(tuple(stacks), tree) if stacks else None


def groups(stacks: Mapping[int, Stack]) -> list[tuple[Stack, tuple[int, ...]]]:
    """Ranks that stand at the same place, the smallest group (the outliers) first."""
    by_place: dict[tuple[str, str], list[int]] = {}
    for rank, stack in sorted(stacks.items()):
        by_place.setdefault(stack.group, []).append(rank)
    by_size = sorted(by_place.values(), key=lambda ranks: (len(ranks), ranks))
    return [(stacks[ranks[0]], tuple(ranks)) for ranks in by_size]


class NativeStack:
    """The C frames of one process through py-spy, where it is installed and permitted."""

    def __init__(self, paths: RunPaths, rank: int, process: ProcessDoc | None) -> None:
        self._file = paths.metrics / f"rank-{rank}.native"
        self._child: subprocess.Popen[bytes] | None = None
        program = shutil.which("py-spy")
        if program is None or process is None or not processes.is_alive(process):
            return
        with contextlib.suppress(OSError), self._file.open("wb") as out:
            self._child = subprocess.Popen(
                [program, "dump", "--native", "--nonblocking", "--pid", str(process["pid"])],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.DEVNULL,
            )

    def innermost(self) -> str | None:
        """The innermost native frame; None while py-spy works, or where it may not look."""
        if self._child is None or self._child.poll() != 0:
            return None
        lines = [line.strip() for line in read_tail(self._file, _MAX_BYTES).splitlines()]
        at = next((n for n, line in enumerate(lines) if "MainThread" in line), len(lines))
        return lines[at + 1][:200] if at + 1 < len(lines) else None

    def end(self) -> None:
        """Leave no child behind."""
        if self._child is not None and self._child.poll() is None:
            self._child.kill()
            self._child.wait()
