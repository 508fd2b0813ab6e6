"""Decides what this Python process is, and sets up its recording. Standard library only."""

from __future__ import annotations

import atexit
import builtins
import contextlib
import faulthandler
import io
import os
import sys
import time
import traceback
from types import TracebackType
from typing import NoReturn

from . import leaving, patches, profiling
from .answers import Answers
from .recorder import Recorder, first_step
from .writers import PatientFile, current_rss_peak, write_json

_LAUNCHERS = ("accelerate", "torchrun", "deepspeed")
_LAUNCHER_MODULES = ("accelerate.commands.launch", "torch.distributed.run", "deepspeed.launcher")
_HELPERS = ("multiprocessing.", "from multiprocessing", "torch._inductor")
CLAIM = "WORKBENCH_RANK_PID"  # set by the process that is the rank; its children are not


class _Current:
    """The recorder of this process, if it is a rank."""

    recorder: Recorder | None = None


def recorder() -> Recorder | None:
    """The recorder of this process; None outside a rank."""
    return _Current.recorder


def saving(kind: str) -> contextlib.AbstractContextManager[list[str]]:
    """Around a recipe's own saving of a checkpoint, see `leaving.saving`."""
    current = _Current.recorder
    return contextlib.nullcontext([]) if current is None else leaving.saving(current, kind)


def leave(current: Recorder) -> NoReturn:
    """Leave a loop that tells its steps itself, at the agreed one."""
    leaving.leave(current)


def install() -> None:
    """Become the recorder of this rank, or do nothing in every other process."""
    patches.keep_local()
    rank = _rank()
    if rank is None:
        return
    os.environ[CLAIM] = str(os.getpid())
    folder = os.environ["WORKBENCH_RUN_DIR"]
    _redirect_output(os.path.join(folder, "logs", f"rank-{rank}.log"))
    write_json(
        os.path.join(folder, "metrics", f"rank-{rank}.start.json"),
        {
            "rank": rank,
            "time": time.time(),
            "process": _identity(),
            "world_size": int(os.environ.get("WORLD_SIZE", "1")),
            "hostname": os.uname().nodename,
            "python": sys.version.split()[0],
            "attempt_first_step": first_step(),
        },
    )
    recorder = None
    if os.environ.get("WORKBENCH_CAPTURE", "full") == "full":
        recorder = _Current.recorder = Recorder(folder, rank)
        patches.arm(recorder)
        with contextlib.suppress(Exception):
            profiling.from_environment(recorder)
    _record_end(folder, rank, recorder)
    Answers(folder, rank, recorder).listen()


def _rank() -> int | None:
    """This process's rank; None for launchers, data-loader workers and other helpers."""
    if CLAIM in os.environ:
        return None
    kind, name = _program(list(getattr(sys, "orig_argv", sys.argv)))
    if kind == "-c" and any(helper in name for helper in _HELPERS):
        return None
    if kind == "-m" and name.startswith((*_LAUNCHER_MODULES, *_HELPERS)):
        return None
    if kind == "script" and os.path.basename(name) in _LAUNCHERS:
        return None
    return int(os.environ.get("RANK", "0"))


def _program(words: list[str]) -> tuple[str, str]:
    """What Python was asked to run: ("-m", module), ("-c", code), ("script", path) or ("", "")."""
    rest = iter(words[1:])
    for word in rest:
        if word in {"-m", "-c"}:
            return word, next(rest, "")
        if word in {"-X", "-W"}:
            next(rest, None)
        elif not word.startswith("-"):
            return "script", word
    return "", ""


def _redirect_output(path: str) -> None:
    """Send this process's stdout and stderr (the file descriptors) to the rank's log."""
    with contextlib.suppress(OSError):
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        os.close(handle)
        sys.stdout = sys.__stdout__ = _patient_stream(1, "<stdout>")
        sys.stderr = sys.__stderr__ = _patient_stream(2, "<stderr>")
        faulthandler.enable()


def _patient_stream(descriptor: int, name: str) -> io.TextIOWrapper:
    """A text stream whose ``print`` survives a full disk, as on the terminal it replaces."""
    file = PatientFile(descriptor, name)  # unbuffered, as torchrun's own `python -u` is
    return io.TextIOWrapper(file, "utf-8", errors="backslashreplace", write_through=True)  # pyright: ignore[reportArgumentType]


def _record_end(folder: str, rank: int, recorder: Recorder | None) -> None:
    """Write how this rank ended: cleanly, by which exception, with which exit code."""
    owner = os.getpid()
    end: dict[str, object] = {"rank": rank, "ok": True, "exit_code": None, "exception": None}
    previous_hook = sys.excepthook
    exit_function = sys.exit

    def on_exception(
        kind: type[BaseException], value: BaseException, trace: TracebackType | None
    ) -> None:
        previous_hook(kind, value, trace)  # first of all the user sees the traceback
        if os.getpid() == owner:
            end.update(_describe(kind, value, trace))
            write(drain=False)

    def on_exit(code: str | int | None = None) -> NoReturn:
        if os.getpid() == owner and code not in (None, 0):
            end.update(ok=False, exit_code=code if isinstance(code, int) else 1)
        exit_function(code)  # raises SystemExit

    def write(*, drain: bool = True) -> None:
        if os.getpid() != owner:
            return
        value = getattr(sys, "last_value", None)  # set before any excepthook, ours or another's
        if end["ok"] and isinstance(value, BaseException):
            end.update(_describe(type(value), value, value.__traceback__))
        if recorder is not None:
            if drain:
                recorder.drain()
            recorder.flush()  # a reader of the end finds every step before it
            end.update(steps=recorder.steps, **recorder.end_fields())
        end.setdefault("time", time.time())
        end.update(peak_memory_bytes=current_rss_peak())
        write_json(os.path.join(folder, "metrics", f"rank-{rank}.end.json"), end)

    sys.excepthook = on_exception
    sys.exit = builtins.exit = builtins.quit = on_exit
    atexit.register(write)


def _describe(
    kind: type[BaseException], value: BaseException, trace: TracebackType | None
) -> dict[str, object]:
    """An exception as the end record tells it: text, the user's own line, traceback."""
    frames = traceback.extract_tb(trace)
    memory = (
        _gpu_memory() if "OutOfMemory" in kind.__name__ or "out of memory" in str(value) else {}
    )
    own = next((f for f in reversed(frames) if "site-packages" not in f.filename), None)
    return {
        "ok": False,
        "exit_code": 1,
        "exception": f"{kind.__name__}: {value}"[:4000],
        "where": f"{os.path.basename(own.filename)}:{own.lineno} in {own.name}" if own else None,
        "traceback": "".join(traceback.format_exception(kind, value, trace))[-20_000:],
        **memory,
    }


def _gpu_memory() -> dict[str, object]:
    """What the allocator and the card say when memory ran out; nothing on CPU."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    try:
        if cuda is None or not cuda.is_initialized():
            return {}
        free, total = cuda.mem_get_info()
        return {
            "gpu_memory": {
                "allocated_bytes": cuda.memory_allocated(),
                "reserved_bytes": cuda.memory_reserved(),
                "peak_allocated_bytes": cuda.max_memory_allocated(),
                "free_bytes": free,
                "total_bytes": total,
            }
        }
    except Exception:
        return {}


def _identity() -> dict[str, object]:
    with open("/proc/self/stat", encoding="utf-8", errors="replace") as file:
        fields = file.read().rpartition(")")[2].split()
    boot = "unknown"
    with contextlib.suppress(OSError), open("/proc/sys/kernel/random/boot_id") as file:
        boot = file.read().strip()
    return {"pid": os.getpid(), "start_ticks": int(fields[19]), "boot_id": boot}
