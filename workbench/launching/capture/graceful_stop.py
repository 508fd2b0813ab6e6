"""The graceful stop: all ranks save at the same step, and leave. And what others save is noted."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator
from typing import Any, NoReturn

from .pulse import SAVING
from .recorder import Recorder
from .writers import LineWriter

_FLUSH_SECONDS = 0.05

PARTIAL = "partial-"  # of a checkpoint that gets its real name when it is whole


_STEPS_TO_LEAVE = 10  # after the script's own handler was called
_HOOKS_HANDLER = f"{__package__}.control_requests"


class _Heard:
    """The step in which the script's own handler was called."""

    step: int | None = None


class _Depth:
    """How many observed saves are on the stack: one checkpoint is told once."""

    saving = 0


def leave(recorder: Recorder) -> None:
    """Save what Accelerate knows how to save, say so, and exit cleanly; every rank calls it.

    It returns where the script has a handler of SIGTERM, which may save what only it knows, and
    has not had the steps yet in which to leave.
    """
    recorder.stopped_at = recorder.steps
    if recorder.accelerator is not None:
        recorder.checkpoint = _checkpoint(recorder, recorder.accelerator)
    elif _left_to_the_script(recorder):
        return
    depart(recorder)


def _left_to_the_script(recorder: Recorder) -> bool:
    """Call the script's own handler of SIGTERM, in the same step on every rank."""
    handler: Any = signal.getsignal(signal.SIGTERM)
    own = callable(handler) and (getattr(handler, "__module__", None) or "") != _HOOKS_HANDLER
    if not own or threading.current_thread() is not threading.main_thread():
        return False
    if _Heard.step is None:
        _Heard.step = recorder.steps
        print(  # noqa: T201
            f"\nworkbench: asked to stop at step {recorder.steps}: the script's own handler of "
            "SIGTERM is called",
            flush=True,
        )
        signal.raise_signal(signal.SIGTERM)
    return recorder.steps - _Heard.step < _STEPS_TO_LEAVE  # no clock: all ranks decide alike


def depart(recorder: Recorder) -> NoReturn:
    """End this rank after a stop: trackers and process group are closed first."""
    if recorder.accelerator is not None:
        recorder.accelerator.end_training()
    print(f"\nworkbench: stopped at step {recorder.stopped_at} as asked", flush=True)  # noqa: T201
    raise SystemExit(0)


def _checkpoint(recorder: Recorder, accelerator: Any) -> str:
    """Write ``checkpoints/step-N``, visible only when it is whole; returns where it lies."""
    folder = os.path.join(recorder.folder, "checkpoints")
    final = os.path.join(folder, f"step-{recorder.steps:08d}")
    partial = os.path.join(folder, f"{PARTIAL}step-{recorder.steps:08d}")
    with saving(recorder, "accelerate") as where:
        try:  # a rank that fails must not leave the others at a barrier
            saved = str(accelerator.save_state(partial))
        finally:
            accelerator.wait_for_everyone()
        try:
            if os.path.abspath(saved) != os.path.abspath(partial):
                final = saved  # the script's own automatic naming wins
            elif accelerator.is_main_process:
                _publish(recorder, partial, final)
        finally:
            accelerator.wait_for_everyone()
        where.append(final)
    return final


def save_now(recorder: Recorder) -> str:
    """Save what Accelerate knows how to save and train on; every rank calls it. Where it lies."""
    return _checkpoint(recorder, recorder.accelerator)


def _publish(recorder: Recorder, partial: str, final: str) -> None:
    """Seal the folder with a manifest of sizes and hashes, then give it its name."""
    files = recipe_file("checkpoint_files")
    if files is None:
        os.rename(partial, final)
        return
    files.seal(
        _path(partial),
        step=recorder.steps,
        kind="accelerate",
        world_size=recorder.world_size or 1,
    )
    files.publish(_path(partial), _path(final))


def _path(text: str) -> Any:
    from pathlib import Path  # noqa: PLC0415  (not loaded into every process of a run)

    return Path(text)


def recipe_file(name: str) -> Any:
    """A file of recipes/ of the standard library alone, such as the one writer of manifests."""
    workbench = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    path = os.path.join(workbench, "recipes", f"{name}.py")
    spec = importlib.util.spec_from_file_location(f"_workbench_{name}", path)
    if spec is None or spec.loader is None or not os.path.exists(path):
        return None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@contextlib.contextmanager
def saving(recorder: Recorder, kind: str) -> Generator[list[str]]:
    """Around saving a checkpoint: the pulse says so, and rank 0 notes it once it is there.

    The caller appends the folder to the list it gets. Nothing is noted of a save inside another,
    of one that failed, and of a folder that is about to be renamed.
    """
    where: list[str] = []
    begun, phase = time.perf_counter(), recorder.pulse.phase
    _Depth.saving += 1
    recorder.pulse.beat(SAVING, recorder.steps)
    recorder.flush(_FLUSH_SECONDS)  # a run resumed from this checkpoint has every line before it
    try:
        yield where
    finally:
        _Depth.saving -= 1
        recorder.pulse.beat(phase, recorder.steps)
        recorder.pulse.flush()  # no one else does while no lines come
    if _Depth.saving:
        return
    seconds = time.perf_counter() - begun
    recorder.not_data(seconds)
    if recorder.rank == 0 and where and not os.path.basename(where[0]).startswith(PARTIAL):
        _note(recorder, where[0], kind, seconds)


def _note(recorder: Recorder, path: str, kind: str, seconds: float) -> None:
    line = {
        "time": round(time.time(), 6),
        "step": recorder.steps,
        "path": os.path.abspath(path),
        "kind": kind,
        "seconds": round(seconds, 6),
        "world_size": recorder.world_size or 1,
    }
    writer = LineWriter(os.path.join(recorder.folder, "checkpoints.jsonl"))
    writer.write(json.dumps(line, separators=(",", ":")).encode() + b"\n")
    writer.close()


def observed_save(
    recorder: Recorder, function: Callable[..., Any], kind: str, folder: Callable[..., Any]
) -> Callable[..., Any]:
    """Wrap a method that saves a checkpoint; `folder` tells where, from self, result and args."""

    @functools.wraps(function)
    def save(self: Any, *args: Any, **kwargs: Any) -> Any:
        with saving(recorder, kind) as where:
            result = function(self, *args, **kwargs)
            with contextlib.suppress(Exception):
                where.append(str(folder(self, result, *args, **kwargs)))
        return result

    return save


def timed_save(recorder: Recorder, function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap torch.save: what the script's own saves take is no forward pass."""

    @functools.wraps(function)
    def save(*args: Any, **kwargs: Any) -> Any:
        begun = time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            if not _Depth.saving and threading.current_thread() is threading.main_thread():
                recorder.not_data(time.perf_counter() - begun)

    return save
