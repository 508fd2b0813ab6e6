"""Decides what this Python process is, and sets up its recording. Standard library only."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable

from . import (
    arrivals,
    ends,
    graceful_stop,
    launcher_folder,
    patches,
    profiling,
    spawned,
    starts,
    warned,
    wrapping,
)
from .control_requests import ControlRequests
from .exceptions import FOREWORD, code_facts
from .recorder import Recorder
from .writers import redirect_output

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
    """Around a recipe's own saving of a checkpoint, see `graceful_stop.saving`."""
    current = _Current.recorder
    return contextlib.nullcontext([]) if current is None else graceful_stop.saving(current, kind)


def outside_steps() -> contextlib.AbstractContextManager[Callable[[], None]]:
    """Around a recipe's work that belongs to no step, see `Recorder.outside_steps`."""
    current = _Current.recorder
    return contextlib.nullcontext(lambda: None) if current is None else current.outside_steps()


def leave(current: Recorder) -> None:
    """Leave a loop that tells its steps itself, at the agreed one."""
    graceful_stop.leave(current)


def install() -> None:
    """Become the recorder of this rank, or do nothing in every other process."""
    patches.keep_local()
    rank = _rank()
    if rank is None:
        folder = os.environ.get("WORKBENCH_RUN_DIR")
        if CLAIM in os.environ and folder:
            _watch_spawned(folder)
        elif folder:
            place = launcher_folder.patch(folder)
            patches.when_imported({"torch.distributed.elastic.multiprocessing.api": place})
        return
    if int(os.environ.get("WORLD_SIZE") or "1") == 1:
        os.environ[ends.SINGLE_RANK_VARIABLE] = "1"
        patches.when_imported(ends.watch_children())
    os.environ[CLAIM] = str(os.getpid())
    folder, code = os.environ["WORKBENCH_RUN_DIR"], _code()
    restarted = os.path.exists(starts.start_file(folder, rank))  # an earlier attempt's was put away
    redirect_output(os.path.join(folder, "logs", f"rank-{rank}.log"))
    starts.write_start(folder, rank, code)
    patches.when_imported({"accelerate.utils.dataclasses": wrapping.patch})
    recorder = None
    if os.environ.get("WORKBENCH_CAPTURE", "full") == "full":
        recorder = _Current.recorder = Recorder(folder, rank)
        recorder.restarted, recorder.code = restarted, code
        arrivals.prepare()
        warned.patch()
        patches.arm(recorder)
        with contextlib.suppress(Exception):
            profiling.from_environment(recorder)
        _measure(recorder)
    ends.record_end(folder, rank, recorder, code)
    ControlRequests(folder, rank, recorder).listen()


def _watch_spawned(folder: str) -> None:
    """A process that a rank started: one of the only rank is recorded as a rank once it trains."""
    if os.environ.get("WORKBENCH_CAPTURE", "full") != "full":
        return
    if not os.environ.get(ends.SINGLE_RANK_VARIABLE):
        patches.when_imported(spawned.watch_group(folder, int(os.environ[CLAIM])))
        return

    def become(rank: int, world_size: int | None, backend: str | None) -> None:
        recorder = _Current.recorder = Recorder(folder, rank)
        patches.arm(recorder)
        _measure(recorder)
        spawned.record(recorder, _code(), world_size, backend)

    patches.when_imported(spawned.watch(folder, int(os.environ[CLAIM]), become))


def _measure(recorder: Recorder) -> None:
    """Watch this rank's steps in a run of ``measure`` or ``verify``; nothing in every other one."""
    if "WORKBENCH_MEASURE" in os.environ:
        from . import probe  # noqa: PLC0415  (only in a run that is measured)

        probe.arm(recorder)
    if "WORKBENCH_VERIFY" in os.environ:
        from . import verify  # noqa: PLC0415  (only in a run that is verified)

        verify.arm(recorder)


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
        elif not word.startswith("-") and os.path.basename(word) != FOREWORD:
            return "script", word
    return "", ""


def _code() -> dict[str, object]:
    kind, name = _program(list(getattr(sys, "orig_argv", sys.argv)))
    script, module = (name if kind == expected else None for expected in ("script", "-m"))
    return code_facts(script, module)
