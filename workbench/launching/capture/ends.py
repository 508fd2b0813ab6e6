"""How a rank ended: cleanly, by which exception at which line, with which exit code."""

from __future__ import annotations

import atexit
import builtins
import contextlib
import os
import sys
import time
import traceback
from collections.abc import Mapping
from types import TracebackType
from typing import Any, NoReturn

from . import exceptions
from .recorder import Recorder
from .writers import current_rss_peak, write_json


def record_end(folder: str, rank: int, recorder: Recorder | None, code: Mapping[str, Any]) -> None:
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
            end.update(_describe(kind, value, trace, code))
            write(drain=False)

    def on_exit(status: str | int | None = None) -> NoReturn:
        if os.getpid() == owner and status not in (None, 0):
            end.update(ok=False, exit_code=status if isinstance(status, int) else 1)
            with contextlib.suppress(Exception):
                end.update(exceptions.caller(code))
        exit_function(status)  # raises SystemExit

    def write(*, drain: bool = True) -> None:
        if os.getpid() != owner:
            return
        value = getattr(sys, "last_value", None)  # set before any excepthook, ours or another's
        if end["ok"] and isinstance(value, BaseException):
            end.update(_describe(type(value), value, value.__traceback__, code))
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


def record_spawned_end(recorder: Recorder, code: Mapping[str, Any]) -> None:
    """A process of `multiprocessing` ends without exit handlers, but calls its own finalizers.

    The end of rank 0 is written by the process that started it, which is the one that goes on.
    """
    from multiprocessing import util  # noqa: PLC0415  (only where it is loaded already)

    def finish() -> None:
        recorder.drain()
        recorder.flush()
        if recorder.rank > 0 and os.getpid() == recorder.owner:
            _write_spawned_end(recorder, code)

    util.Finalize(None, finish, exitpriority=100)  # pyright: ignore[reportUnknownMemberType]


def _write_spawned_end(recorder: Recorder, code: Mapping[str, Any]) -> None:
    value = sys.exc_info()[1] or getattr(sys, "last_value", None)
    if isinstance(value, SystemExit) and value.code not in (None, 0):
        value = value.__context__ or value  # torch.multiprocessing exits after it
    end: dict[str, object] = {"rank": recorder.rank, "ok": True, "exit_code": 0, "exception": None}
    if isinstance(value, BaseException) and not isinstance(value, SystemExit):
        end.update(_describe(type(value), value, value.__traceback__, code))
    elif isinstance(value, SystemExit) and value.code not in (None, 0):
        end.update(ok=False, exit_code=value.code if isinstance(value.code, int) else 1)
    end.update(steps=recorder.steps, **recorder.end_fields(), time=time.time())
    end.update(peak_memory_bytes=current_rss_peak())
    write_json(os.path.join(recorder.folder, "metrics", f"rank-{recorder.rank}.end.json"), end)


def _describe(
    kind: type[BaseException],
    value: BaseException,
    trace: TracebackType | None,
    code: Mapping[str, Any],
) -> dict[str, object]:
    """An exception as the end record tells it: text, the user's own line, chain, traceback."""
    out_of_memory = "OutOfMemory" in kind.__name__ or "out of memory" in str(value)
    place: dict[str, Any] = {"where": None}
    with contextlib.suppress(Exception):  # whatever its __str__ does, the traceback is kept
        place = exceptions.described(value, code)
    return {
        "ok": False,
        "exit_code": 1,
        "exception": f"{kind.__name__}: {value}"[:4000],
        "traceback": "".join(traceback.format_exception(kind, value, trace))[-20_000:],
        **place,
        **(_gpu_memory() if out_of_memory else {}),
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
