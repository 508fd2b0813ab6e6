"""Decides what this Python process is, and sets up its recording. Standard library only."""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import io
import json
import os
import sys
import time
import traceback
from types import TracebackType
from typing import NoReturn

from . import patches
from .recorder import PatientFile, Recorder, current_rss_peak

_LAUNCHERS = ("accelerate", "torchrun", "deepspeed")
_LAUNCHER_MODULES = ("accelerate.commands.launch", "torch.distributed.run", "deepspeed.launcher")
_HELPERS = ("multiprocessing.", "--multiprocessing-fork", "torch._inductor")
CLAIM = "WORKBENCH_RANK_PID"  # set by the process that is the rank; its children are not


def install() -> None:
    """Become the recorder of this rank, or do nothing in every other process."""
    rank = _rank()
    if rank is None:
        return
    os.environ[CLAIM] = str(os.getpid())
    folder = os.environ["WORKBENCH_RUN_DIR"]
    _redirect_output(os.path.join(folder, "logs", f"rank-{rank}.log"))
    _write_json(
        os.path.join(folder, "metrics", f"rank-{rank}.start.json"),
        {
            "rank": rank,
            "time": time.time(),
            "process": _identity(),
            "world_size": int(os.environ.get("WORLD_SIZE", "1")),
        },
    )
    recorder = None
    if os.environ.get("WORKBENCH_CAPTURE", "full") == "full":
        recorder = Recorder(folder, rank)
        patches.arm(recorder)
    _record_end(folder, rank, recorder)


def _rank() -> int | None:
    """This process's rank; None for launchers, data-loader workers and other helpers."""
    if CLAIM in os.environ:
        return None
    words = list(getattr(sys, "orig_argv", sys.argv))
    if any(helper in word for word in words[:4] for helper in _HELPERS):
        return None
    if "RANK" in os.environ:
        return int(os.environ["RANK"])
    if any(word in _LAUNCHER_MODULES for word in words[:6]):
        return None
    if any(os.path.basename(word) in _LAUNCHERS for word in words[:3]):
        return None
    return 0


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
    buffer = io.BufferedWriter(PatientFile(descriptor, name))
    return io.TextIOWrapper(buffer, "utf-8", errors="backslashreplace", line_buffering=True)


def _record_end(folder: str, rank: int, recorder: Recorder | None) -> None:
    """Write how this rank ended: cleanly, by which exception, with which exit code."""
    owner = os.getpid()
    end: dict[str, object] = {"rank": rank, "ok": True, "exit_code": None, "exception": None}
    previous_hook = sys.excepthook
    exit_function = sys.exit

    def on_exception(
        kind: type[BaseException], value: BaseException, trace: TracebackType | None
    ) -> None:
        if os.getpid() == owner:
            frames = traceback.extract_tb(trace)
            own = next((f for f in reversed(frames) if "site-packages" not in f.filename), None)
            end.update(
                ok=False,
                exit_code=1,
                exception=f"{kind.__name__}: {value}"[:4000],
                where=f"{os.path.basename(own.filename)}:{own.lineno} in {own.name}"
                if own
                else None,
                traceback="".join(traceback.format_exception(kind, value, trace))[-20_000:],
            )
            write()
        previous_hook(kind, value, trace)

    def on_exit(code: str | int | None = None) -> NoReturn:
        if os.getpid() == owner and code not in (None, 0):
            end.update(ok=False, exit_code=code if isinstance(code, int) else 1)
        exit_function(code)  # raises SystemExit

    def write() -> None:
        if os.getpid() != owner:
            return
        if recorder is not None:
            recorder.drain()
            end.update(steps=recorder.steps, **recorder.end_fields())
        end.update(time=time.time(), peak_memory_bytes=current_rss_peak())
        _write_json(os.path.join(folder, "metrics", f"rank-{rank}.end.json"), end)

    sys.excepthook = on_exception
    sys.exit = on_exit
    atexit.register(write)


def _identity() -> dict[str, object]:
    with open("/proc/self/stat", encoding="utf-8", errors="replace") as file:
        fields = file.read().rpartition(")")[2].split()
    boot = "unknown"
    with contextlib.suppress(OSError), open("/proc/sys/kernel/random/boot_id") as file:
        boot = file.read().strip()
    return {"pid": os.getpid(), "start_ticks": int(fields[19]), "boot_id": boot}


def _write_json(path: str, document: dict[str, object]) -> None:
    with contextlib.suppress(OSError, ValueError):
        temporary = f"{path}.{os.getpid()}.tmp"
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump(document, file)
        os.replace(temporary, path)
