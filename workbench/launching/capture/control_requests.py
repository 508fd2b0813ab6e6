"""What others ask of a running rank: its stacks, its latest collectives, and to make room.

Signals are handled only where the script leaves them alone, files are looked at by one daemon
thread, so that a rank whose main thread hangs in C code still answers.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import json
import os
import signal
import threading
import time
from typing import Any

from . import profiling, starts
from . import steering as steering_of
from .flight_recorder import FlightRecorder
from .recorder import Recorder

STACK_SIGNAL = 62  # store.schema.STACK_SIGNAL; a test holds them together
_LOOK_SECONDS = 0.5
_UNHEARD_SECONDS = 10.0  # no one names a stop step: no one watches this run any more
_SETTLE_SECONDS = 1.0
_FLUSH_SECONDS = 0.3
_NO_ENTRIES = b'{"entries": null}'  # whether there were collectives is not known
_open_files: list[Any] = []  # faulthandler needs the file to stay open


class ControlRequests:
    """Answers the requests made of one rank."""

    def __init__(self, folder: str, rank: int, recorder: Recorder | None) -> None:
        control = os.path.join(folder, "control")
        self._dump, self._stacks, self._terminating = (
            os.path.join(control, name) for name in ("dump", "stacks", "terminating")
        )
        self._preempt, self._stop_at = (
            os.path.join(control, name) for name in ("preempt", "stop-at")
        )
        self._profile = os.path.join(control, "profile")
        self._profiled: int | None = None
        self._steer = os.path.join(control, steering_of.BELL)
        self._steered: int | None = None
        self._trace = os.path.join(folder, "metrics", f"rank-{rank}.trace.json")
        self._stack = os.path.join(folder, "metrics", f"rank-{rank}.stack")
        self._recorder = recorder
        self._ring = FlightRecorder() if recorder is None else recorder.ring
        self._owner = os.getpid()
        # Left over from an attempt before this one.
        self._dumped, self._old_end = _changed_at(self._dump), _changed_at(self._terminating)
        self._stacked = _changed_at(self._stacks)
        self._requested_at: float | None = None
        self._woken: int | None = None  # Python's own C handler writes the signals' numbers here
        self._term = False

    def listen(self) -> None:
        """Set up the signals and the thread, in the main thread."""
        with contextlib.suppress(OSError, ValueError, RuntimeError):
            file = open(self._stack, "a", encoding="utf-8")  # noqa: SIM115 - stays open
            _open_files.append(file)
            faulthandler.register(STACK_SIGNAL, file=file, all_threads=True, chain=False)
        if self._recorder is not None and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            with contextlib.suppress(OSError, ValueError):
                signal.signal(signal.SIGTERM, self._on_sigterm)
                self._woken, written = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
                signal.set_wakeup_fd(written, warn_on_full_buffer=False)
        if self._recorder is None:  # else it ends the ring, after its last look
            atexit.register(self._ring.end)
        threading.Thread(target=self._look, name="workbench-answers", daemon=True).start()

    def _on_sigterm(self, *_: object) -> None:
        """A notice to make room: ask the supervisor for a stop step, and train on until then.

        The launcher sends the same signal to everybody when one rank is lost: then end, as always.
        """
        if os.getpid() != self._owner or self._ending() or self._peer_lost() or not self._ask():
            if self._recorder is not None:
                self._recorder.flush(_FLUSH_SECONDS)
            _end_by_sigterm()

    def _peer_lost(self) -> bool:
        """Whether a rank of this attempt is gone: nothing can continue without it.

        One that ended well, for example at the stop step, is not lost: this one may be saving. Of
        a rank on another machine only its end is known; its numbers name other processes here.
        """
        folder, here = os.path.dirname(self._stack), starts.identity()["boot_id"]
        for name in os.listdir(folder):
            if name.startswith("rank-") and name.endswith(".start.json"):
                with contextlib.suppress(OSError, ValueError, KeyError):
                    start = os.path.join(folder, name)
                    with open(start, encoding="utf-8") as file:
                        record = json.load(file)
                    process = record["process"]
                    if (process["boot_id"], record["hostname"]) == (here, os.uname().nodename):
                        alive = _lives(process["pid"], process["start_ticks"])
                        lost = not alive and _ended_well(start) is not True
                    else:
                        lost = _ended_well(start) is False
                    if lost:
                        return True
        return False

    def _ask(self) -> bool:
        """Whether the supervisor could be asked."""
        try:
            os.close(os.open(self._preempt, os.O_WRONLY | os.O_CREAT, 0o600))
        except OSError:
            return False
        self._requested_at = self._requested_at or time.monotonic()
        return True

    def _ending(self) -> bool:
        """Whether the supervisor is ending this attempt by signals."""
        return _changed_at(self._terminating) not in {None, self._old_end}

    def _look(self) -> None:
        while os.getpid() == self._owner:
            with contextlib.suppress(Exception):
                self._answer()
                if self._recorder is not None and not self._replaced():
                    self._recorder.arrivals.look()
            time.sleep(_LOOK_SECONDS)

    def _answer(self) -> None:
        dump = _changed_at(self._dump)
        if dump not in {None, self._dumped}:
            self._dumped = dump
            self._write_trace()
        stacks = _changed_at(self._stacks)
        if stacks not in {None, self._stacked}:
            self._stacked = stacks
            self._write_stacks()
        profile = _changed_at(self._profile)
        if self._recorder is not None and profile not in {None, self._profiled}:
            self._profiled = profile
            with open(self._profile, encoding="utf-8") as file:
                profiling.ask(self._recorder, file.read())
        self._hear()
        unheard = (
            self._requested_at is not None
            and time.monotonic() - self._requested_at > _UNHEARD_SECONDS
            and not os.path.exists(self._stop_at)
        )
        hopeless = self._signalled() and self._peer_lost()
        if (unheard or hopeless or self._ending()) and signal.getsignal(
            signal.SIGTERM
        ) == self._on_sigterm:
            # A main thread that hangs in C code never runs a Python handler. By default SIGTERM
            # would have ended it at once, so it does again; this thread may not use `signal`.
            time.sleep(0.0 if unheard or hopeless else _SETTLE_SECONDS)
            import ctypes  # noqa: PLC0415  (hardly any rank ever needs it)

            ctypes.CDLL(None).signal(int(signal.SIGTERM), None)
            os.kill(self._owner, signal.SIGTERM)

    def _hear(self) -> None:
        """What someone asks of the training itself."""
        changed, recorder = _changed_at(self._steer), self._recorder
        if recorder is not None and changed not in {None, self._steered}:
            with open(self._steer, encoding="utf-8") as file:
                names = file.read()
            self._steered = changed
            if recorder.steering is None:
                recorder.steering = steering_of.Steering(recorder)
            recorder.steering.hear(names)

    def _signalled(self) -> bool:
        """Whether SIGTERM came, also while the main thread sits in C code and cannot know."""
        if self._woken is not None and not self._term:
            with contextlib.suppress(OSError):
                self._term = signal.SIGTERM in os.read(self._woken, 64)
        return self._term

    def _replaced(self) -> bool:
        """Whether a process that this one started is recorded as the rank."""
        claim = os.path.join(os.path.dirname(self._stack), f"rank-0.spawned-{os.getpid()}")
        return os.path.exists(claim)

    def _write_stacks(self) -> None:
        """As the signal does, but while this thread holds the interpreter.

        No other thread changes its frames meanwhile. The signal's handler runs in the midst of a
        call, and reads frames that are half made: of Python 3.11 one in 1,800 such looks at a
        thread that runs Python is a crash.
        """
        if _open_files and not self._replaced():
            faulthandler.dump_traceback(file=_open_files[-1], all_threads=True)

    def _write_trace(self) -> None:
        """The latest collectives, as torch's flight recorder has them (gloo and NCCL)."""
        if self._replaced():
            return  # the process that trains answers in our place
        # NCCL has a recorder of its own; a process may use both, and the longer one tells more.
        names = ("_dump_fr_trace_json", "_dump_nccl_trace_json")
        content = max((self._ring.dump(name) for name in names), key=len)
        if b'"entries"' not in content and not (content and self._ring.keeps):
            content = _NO_ENTRIES  # that this thread runs is an answer, too
        temporary = f"{self._trace}.tmp"
        with open(temporary, "wb") as file:
            file.write(content)
        os.replace(temporary, self._trace)


def _end_by_sigterm() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)


def _ended_well(start: str) -> bool | None:
    """Whether the end that the rank of this start record has left is without an error; None = none.

    An end that is older than the start is one of an attempt before.
    """
    end = start.removesuffix(".start.json") + ".end.json"
    with contextlib.suppress(OSError, ValueError, KeyError):
        with open(end, encoding="utf-8") as file:
            well = json.load(file)["ok"] is True
        return well if os.stat(end).st_mtime_ns >= os.stat(start).st_mtime_ns else None
    return None


def _lives(pid: int, start_ticks: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return False
    return fields[0] not in "ZX" and int(fields[19]) == start_ticks


def _changed_at(path: str) -> int | None:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return None
