"""How a rank ended: cleanly, by which exception at which line, with which exit code."""

from __future__ import annotations

import atexit
import contextlib
import functools
import itertools
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

from . import exceptions, exit_codes
from .recorder import Recorder
from .starts import first_step, start_file
from .writers import current_rss_peak, write_json

_REPORTS = ("ProcessRaisedException: ", "ProcessExitedException: ")  # of torch.multiprocessing
# Set by the only rank of a run for the processes that it starts.
SINGLE_RANK_VARIABLE = "WORKBENCH_ALONE"
_CLEAN: dict[str, object] = {
    "ok": True,
    "exit_code": None,
    "where": None,
    "frame": None,
    "chain": [],
}
_NO_MEMORY = ("out of memory", "_STATUS_ALLOC_FAILED")
_TEXTS = ("exception", "traceback", "chain", "frame")  # of an end record
_child_exit_codes: dict[int, int] = {}


def watch_children() -> dict[str, Callable[[Any], None]]:
    """Actions for Python's own modules: remember how the processes of this one have failed.

    One that is killed leaves no record, and the exception that this process raises then may be
    about another one, which only lost its peer.
    """
    return dict.fromkeys(
        ("multiprocessing.popen_fork", "multiprocessing.popen_forkserver", "subprocess"),
        _patch_poll,
    )


def _patch_poll(module: Any) -> None:
    poll = module.Popen.poll

    @functools.wraps(poll)
    def remember(self: Any, *args: Any, **kwargs: Any) -> Any:
        code = poll(self, *args, **kwargs)
        if code:
            _child_exit_codes.setdefault(self.pid, code)
        return code

    module.Popen.poll = remember


def record_end(folder: str, rank: int, recorder: Recorder | None, code: Mapping[str, Any]) -> None:
    """Write how this rank ended: cleanly, by which exception, with which exit code."""
    owner = os.getpid()
    end: dict[str, object] = {"rank": rank, "ok": True, "exit_code": None, "exception": None}
    previous_hook = sys.excepthook
    left_at: int | None = None  # steps done when the script called sys.exit with an error

    def on_exception(
        kind: type[BaseException], value: BaseException, trace: TracebackType | None
    ) -> None:
        previous_hook(kind, value, trace)  # first of all the user sees the traceback
        if os.getpid() == owner:
            end.update(_describe(kind, value, trace, code))
            write(drain=False)
            exit_codes.keep_interrupt(value)

    def on_exit(exit_code: int) -> None:
        nonlocal left_at
        left_at = recorder.steps if exit_code and recorder is not None else None
        end.update(_asked_for(exit_code, end, code))

    def write(*, drain: bool = True) -> None:
        if os.getpid() != owner:
            return
        if end["ok"]:
            end.update(_unheard_exception(code))
        if recorder is not None:
            if drain:
                recorder.drain()
            end.update(_if_caught(end, left_at, recorder.steps))
            recorder.flush()  # a reader of the end finds every step before it
            end.update(_of_recorder(recorder))
        end.setdefault("time", time.time())
        end.update(peak_memory_bytes=current_rss_peak())
        path = os.path.join(folder, "metrics", f"rank-{rank}.end.json")
        codes = _of_children(folder)
        trained = recorder is not None and recorder.steps > first_step()
        extra = {} if trained else _child_record(path, end)
        _write_end(path, {**end, **extra, **codes})

    sys.excepthook = on_exception
    exit_codes.watch(on_exit)
    atexit.register(write)


def _asked_for(
    exit_code: int, end: Mapping[str, object], code: Mapping[str, Any]
) -> dict[str, object]:
    """What changes where the script asks for that exit code; 0: it has caught an error before."""
    if not exit_code:
        return _CLEAN if end["exception"] is None else {}
    place: dict[str, object] = {}
    with contextlib.suppress(Exception):
        place = exceptions.handled(code, exit_code) or exceptions.caller(code)
    return {"ok": False, "exit_code": exit_code, "chain": [], **place}


def _unheard_exception(code: Mapping[str, Any]) -> dict[str, object]:
    """The one that ended the script where another hook than ours was told."""
    value = getattr(sys, "last_value", None)  # set before any excepthook, ours or another's
    if not isinstance(value, BaseException):
        return {}
    described = _describe(type(value), value, value.__traceback__, code)
    exit_codes.keep_interrupt(value)
    return described


def _if_caught(end: Mapping[str, object], left_at: int | None, steps: int) -> dict[str, object]:
    """What changes where the script caught its own ``sys.exit`` (argparse's), and trained on."""
    if end["exception"] is not None or left_at is None or steps <= left_at:
        return {}
    return _CLEAN


def record_spawned_end(recorder: Recorder, code: Mapping[str, Any]) -> None:
    """A process of `multiprocessing` ends without exit handlers, but calls its own finalizers.

    Where it is rank 0 and ends well, the process that started it writes the end: it continues.
    """
    from multiprocessing import util  # noqa: PLC0415  (only where it is loaded already)

    def finish() -> None:
        recorder.drain()
        recorder.flush()
        if os.getpid() == recorder.owner:
            with contextlib.suppress(Exception):
                _write_spawned_end(recorder, code)

    util.Finalize(None, finish, exitpriority=100)  # pyright: ignore[reportUnknownMemberType]


def _write_spawned_end(recorder: Recorder, code: Mapping[str, Any]) -> None:
    value = sys.exc_info()[1] or getattr(sys, "last_value", None)
    if isinstance(value, SystemExit) and value.code not in (None, 0) and value.__context__:
        value = value.__context__  # torch.multiprocessing hands it to the parent, and exits
        if recorder.rank > 0:  # the parent prints it, into the log of rank 0
            traceback.print_exception(value)
    end: dict[str, object] = {"rank": recorder.rank, "ok": True, "exit_code": 0, "exception": None}
    if isinstance(value, BaseException) and not isinstance(value, SystemExit):
        end.update(_describe(type(value), value, value.__traceback__, code))
        end.update(exit_code=1)  # multiprocessing's for each of them
    elif isinstance(value, SystemExit) and exit_codes.of_status(value.code):
        end.update(ok=False, exit_code=exit_codes.of_status(value.code))
    if end["ok"] and recorder.rank == 0:
        return
    end.update(_of_recorder(recorder), time=time.time())
    end.update(peak_memory_bytes=current_rss_peak(), spawned=True)
    _write_end(os.path.join(recorder.folder, "metrics", f"rank-{recorder.rank}.end.json"), end)


def _of_recorder(recorder: Recorder) -> dict[str, Any]:
    """What the end record holds besides the exception."""
    stopped = recorder.stopped_at
    return {
        "steps": recorder.steps,
        **recorder.facts,
        # A script that ends by its own handler may have made a step more.
        "stopped_at": None if stopped is None else max(stopped, recorder.steps),
        "nothing_left": recorder.nothing_left,
        "checkpoint": recorder.checkpoint,
        "group_world_size": recorder.world_size,
    }


def _write_end(path: str, end: Mapping[str, object]) -> None:
    """What an exception says may quote a key; the rank knows its own variables and arguments."""
    if end["exception"] is not None or end.get("chain"):
        try:
            words = getattr(sys, "orig_argv", sys.argv)
            end = exceptions.secrets_module().hide_failure(end, words)
        except Exception:
            end = {name: value for name, value in end.items() if name not in _TEXTS}
    write_json(path, dict(end))


def _of_children(folder: str) -> dict[str, Any]:
    """The exit codes of the processes of this one that have failed, where there are any."""
    _look_at_children(folder)
    return {"child_exit_codes": _child_exit_codes} if _child_exit_codes else {}


def _look_at_children(folder: str) -> None:
    """How the ranks ended that this process started by `subprocess` and has not waited for."""
    if SINGLE_RANK_VARIABLE not in os.environ:
        return
    with contextlib.suppress(OSError, ValueError, KeyError):
        for rank in itertools.count(1):
            with open(start_file(folder, rank), encoding="utf-8") as file:
                pid = json.load(file)["process"]["pid"]
            with contextlib.suppress(ChildProcessError):
                ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
                if ended is not None and ended.si_status:
                    killed = ended.si_code != os.CLD_EXITED
                    code = -ended.si_status if killed else ended.si_status
                    _child_exit_codes.setdefault(pid, code)


def _child_record(path: str, end: Mapping[str, object]) -> dict[str, Any]:
    """The record of the child process that trained as this rank.

    An exception that this process raised itself counts more than that record.
    """
    if end["exception"] is None or str(end["exception"]).startswith(_REPORTS):
        with contextlib.suppress(OSError, ValueError), open(path, encoding="utf-8") as file:
            record: dict[str, Any] = json.load(file)
            return record if record.get("spawned") else {}
    return {}


def _describe(
    kind: type[BaseException],
    value: BaseException,
    trace: TracebackType | None,
    code: Mapping[str, Any],
) -> dict[str, object]:
    """An exception as the end record tells it: text, the user's own line, chain, traceback."""
    try:
        text = str(value)
    except Exception:
        text = "<exception str() failed>"  # as Python prints it
    out_of_memory = "OutOfMemory" in kind.__name__ or any(words in text for words in _NO_MEMORY)
    place: dict[str, Any] = {"where": None}
    with contextlib.suppress(Exception):
        place = exceptions.described(value, code)
    return {
        "ok": False,
        "exit_code": exit_codes.of_exception(kind),
        "exception": f"{kind.__name__}: {text}"[:4000],
        "traceback": "".join(traceback.format_exception(kind, value, trace))[-20_000:],
        **place,
        **(_gpu_memory() if out_of_memory else {}),
    }


def _gpu_memory() -> dict[str, object]:
    """What the allocator and the card say when memory ran out; nothing on CPU."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return {}
    memory: dict[str, int] = {}
    with contextlib.suppress(Exception):  # an allocator of the script's own counts nothing
        memory.update(
            allocated_bytes=cuda.memory_allocated(),
            reserved_bytes=cuda.memory_reserved(),
            peak_allocated_bytes=cuda.max_memory_allocated(),
        )
    with contextlib.suppress(Exception):
        memory["free_bytes"], memory["total_bytes"] = cuda.mem_get_info()
    return {"gpu_memory": memory} if memory else {}
