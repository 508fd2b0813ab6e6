"""Traces a few optimizer steps of this rank with torch.profiler, when somebody asks for it.

The request names its first step, which lies ahead, so that all ranks trace the same ones without
a word between them. The profiler warms up in the step before. Nothing is analysed here: the rank
leaves its trace and the times of its steps, and the reader computes.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import shutil
import sys
import threading
import time
from typing import Any

from . import exceptions
from .pulse import SAVING
from .recorder import Recorder
from .writers import write_json

VARIABLE = "WORKBENCH_PROFILE"  # the request of a run that is traced from its start
LATE = "late"  # how the reason begins when the first step to trace had passed
MAX_STEPS = 100
_NICE = 19  # writing the trace yields to the training


def from_environment(recorder: Recorder) -> None:
    """The trace that was asked for at the launch, if any."""
    text = os.environ.get(VARIABLE)
    if text:
        ask(recorder, text)


def ask(recorder: Recorder, text: str) -> None:
    """Take a request: ``{"from": first step, "steps": count, "memory": bool, "shapes": bool}``."""
    request = json.loads(text)
    first, steps = int(request["from"]), int(request["steps"])
    if first < 2 or not 1 <= steps <= MAX_STEPS:
        return
    tracer = Tracer(
        recorder,
        first,
        steps,
        memory=bool(request.get("memory")),
        shapes=bool(request.get("shapes")),
    )
    if tracer.answered():  # a request left over from an attempt before this one
        return
    if recorder.tracer is not None and recorder.tracer.path != tracer.path:
        tracer.refuse("another trace is under way; ask again when it is there")
    elif recorder.tracer is None:
        recorder.tracer = tracer


class Tracer:
    """One trace of one rank: of the steps `first` to `first + steps - 1`."""

    def __init__(
        self, recorder: Recorder, first: int, steps: int, *, memory: bool, shapes: bool
    ) -> None:
        self._recorder, self._first, self._last = recorder, first, first + steps - 1
        self._memory, self._shapes = memory, shapes
        folder = os.path.join(recorder.folder, "profiles", f"step-{first:08d}")
        self.path = os.path.join(folder, f"rank-{recorder.rank}")
        self._profile: Any = None
        self._begun_ns: int | None = None
        self._steps: list[dict[str, Any]] = []
        self._spent = {"prepare_seconds": 0.0, "start_seconds": 0.0, "stop_seconds": 0.0}

    def answered(self) -> bool:
        """Whether this request has been answered already, by a trace or a reason."""
        return any(os.path.exists(f"{self.path}.{end}") for end in ("json", "error"))

    def step_ended(self, line: dict[str, Any]) -> None:
        """An optimizer step ended: prepare, begin, note or end, whatever is due. Never raises."""
        try:
            self._step_ended(line)
        except Exception as error:
            self._give_up(f"{type(error).__name__}: {error}")

    def _step_ended(self, line: dict[str, Any]) -> None:
        step: int = line["step"]
        if self._begun_ns is not None:
            line["profiled"] = True
            self._steps.append(
                {
                    "step": step,
                    "end_ns": time.time_ns(),
                    "data_seconds": line.get("data_seconds"),
                }
            )
            if step >= self._last:
                self._end(in_background=True)
        elif step >= self._first:
            self._give_up(f"{LATE}: step {self._first} had passed when the request was read")
        elif step >= self._first - 2:
            if self._profile is None:
                self._profile = self._timed("prepare_seconds", self._prepare)
            if step == self._first - 1:
                self._timed("start_seconds", self._profile.start_trace)
                self._begun_ns = time.time_ns()

    def _prepare(self) -> Any:
        """The profiler, warmed up: no shapes, no stacks, no flops unless asked for."""
        torch = sys.modules.get("torch")
        if torch is None:
            raise RuntimeError("the script does not use torch")
        if torch._C._autograd._profiler_enabled():  # noqa: SLF001 - no public question
            raise RuntimeError("the script is tracing itself with a profiler of its own")
        kinds = torch.profiler.ProfilerActivity
        activities = [kinds.CPU]
        if torch.cuda.is_initialized():
            activities.append(kinds.CUDA)
        profile = torch.profiler.profile(
            activities=activities, profile_memory=self._memory, record_shapes=self._shapes
        )
        profile.prepare_trace()
        return profile

    def _timed(self, name: str, action: Any) -> Any:
        """Do something that holds the training up, and say how long."""
        recorder, begun = self._recorder, time.perf_counter()
        phase = recorder.pulse.phase
        recorder.pulse.beat(SAVING, recorder.steps)  # stands still for a reason
        try:
            return action()
        finally:
            seconds = time.perf_counter() - begun
            self._spent[name] += seconds
            recorder.not_data(seconds)
            recorder.pulse.beat(phase, recorder.steps)

    def finish(self) -> None:
        """The rank ends: keep the steps traced so far, or say that there were none."""
        if self._recorder.tracer is not self:
            return
        try:
            if self._steps:
                self._end(in_background=False)
            else:
                self._give_up(f"the rank ended before step {self._first} was traced")
        except Exception as error:
            self._give_up(f"{type(error).__name__}: {error}")

    def _end(self, *, in_background: bool) -> None:
        self._recorder.tracer = None
        profile, self._profile = self._profile, None
        self._timed("stop_seconds", profile.stop_trace)
        if in_background:  # not a daemon: a run that ends now waits for its trace
            threading.Thread(target=self._export, args=(profile,), name="workbench-profile").start()
        else:
            self._export(profile)

    def _export(self, profile: Any) -> None:
        """Write the trace, compressed, then the times: who sees those finds the trace whole."""
        try:
            with contextlib.suppress(OSError):  # Linux: of this thread alone
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
            begun = time.perf_counter()
            os.makedirs(os.path.dirname(self.path), exist_ok=True)
            plain, packed = f"{self.path}.partial.json", f"{self.path}.partial.gz"
            profile.export_chrome_trace(plain)
            with open(plain, "rb") as source, gzip.open(packed, "wb", compresslevel=3) as target:
                shutil.copyfileobj(source, target, 1 << 20)
            os.unlink(plain)
            os.replace(packed, f"{self.path}.trace.json.gz")
            write_json(f"{self.path}.json", self._about(time.perf_counter() - begun))
        except Exception as error:
            self._give_up(f"{type(error).__name__}: {error}")

    def _about(self, export_seconds: float) -> dict[str, Any]:
        return {
            "rank": self._recorder.rank,
            "begun_ns": self._begun_ns,
            "steps": self._steps,
            "memory": self._memory,
            "shapes": self._shapes,
            "hostname": os.uname().nodename,
            **{name: round(value, 6) for name, value in self._spent.items()},
            "export_seconds": round(export_seconds, 6),
        }

    def refuse(self, why: str) -> None:
        """Leave the reason why there is no trace."""
        with contextlib.suppress(OSError):
            os.makedirs(os.path.dirname(self.path), exist_ok=True)
            partial = f"{self.path}.partial.error"
            with open(partial, "w", encoding="utf-8") as file:
                file.write(exceptions.secrets_module().hide_known(why[:2000]))
            os.replace(partial, f"{self.path}.error")  # who sees the file finds the reason in it

    def _give_up(self, why: str) -> None:
        """Leave the reason; the training continues as if nothing had been asked."""
        self._recorder.tracer = None
        profile, self._profile = self._profile, None
        if profile is not None:
            with contextlib.suppress(Exception):
                profile.stop_trace()
        for end in ("partial.json", "partial.gz"):
            with contextlib.suppress(OSError):
                os.unlink(f"{self.path}.{end}")
        self.refuse(why)
