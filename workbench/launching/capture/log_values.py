"""``workbench.log``: what a script reports of itself, in one line. Standard library only.

Outside a run it does nothing, so the line may stay in the script for good.
"""

from __future__ import annotations

import functools
import json
import math
import os
import sys
import time
from typing import TYPE_CHECKING, Any

from .writers import open_lines

if TYPE_CHECKING:
    from collections.abc import Mapping

_MAX_TEXT = 1000
_LARGEST = 2**63 - 1  # integer that readers take as one


def log(
    mapping: Mapping[str, Any] | None = None, /, *, step: int | None = None, **values: Any
) -> None:
    """Tell the run of this process some values; a no-op outside a run, and never an error.

    Each call appends one line to ``metrics/rank-N.said.jsonl``. Numbers stay numbers (a tensor's or
    an array's single value is read), everything else becomes text. A tensor on a GPU is not waited
    for: its value follows in a later line of the same step.
    In a script whose optimizer steps the workbench cannot see (JAX, TensorFlow, its own
    loop), a call with ``loss=`` is a step: it shows in the charts and takes part in stopping.
    A call with the texts ``prompt=`` and ``answer=`` is a sample: shown step by step. An answer
    ``samples/NAME.png`` is a picture that the script has written there, in the run's directory.

    Args:
        mapping: Names and values, where they are in a dictionary already.
        step: The step these values belong to; default the steps counted so far.
        values: Names and values, whatever their names. ``loss``, ``lr``, ``grad_norm`` and
            ``tokens`` have their usual meaning where the call is a step.

    >>> log(loss=0.5, accuracy=0.9)
    >>> log({"eval/accuracy": 0.9}, step=100)
    """
    folder = os.environ.get("WORKBENCH_RUN_DIR")
    if not folder:
        return
    try:
        named_values = {**(mapping or {}), **values}
        named_values = {str(name): value for name, value in named_values.items()}
        leave = _write(folder, None if step is None else int(step), named_values)
    except Exception:
        return
    if leave is not None:
        leave()


def _write(folder: str, step: int | None, values: dict[str, Any]) -> Any:
    """Write the line; returns what to call when a stop is due."""
    hook: Any = sys.modules.get("_workbench_capture")
    recorder: Any = hook.recorder() if hook is not None else None
    leave, now = None, time.time()
    rank = os.environ.get("RANK", "0")
    on_device: list[tuple[str, Any]] = []
    if recorder is not None and recorder.owner == os.getpid():
        rank = recorder.rank
        on_device = [pair for pair in values.items() if _waits(pair[1])]
        later = {name for name, _ in on_device}
        values = {name: value if name in later else _plain(value) for name, value in values.items()}
        if "loss" in values and recorder.logged_step(step, values) and recorder.stop_due():
            end: Any = hook.leave  # pyright: ignore[reportOptionalMemberAccess]
            leave = functools.partial(end, recorder)  # called outside the guard: it exits
        step = recorder.steps if step is None else step
        recorder.logged.await_device(step, now, on_device)
        values = {name: value for name, value in values.items() if name not in later}
    if values or not on_device:
        plain = {name: _plain(value) for name, value in values.items()}
        _append(folder, rank, {"time": round(now, 6), "step": step, "values": plain})
    return leave


def _waits(value: Any) -> bool:
    """Whether it is the single value of a tensor on a GPU."""
    return getattr(value, "is_cuda", False) and value.numel() == 1


def _append(folder: str, rank: str | int, line: dict[str, Any]) -> None:
    content = json.dumps(line, separators=(",", ":")).encode() + b"\n"
    path = os.path.join(folder, "metrics", f"rank-{rank}.said.jsonl")
    handle = open_lines(path, 0o600)
    try:
        os.write(handle, content)
    finally:
        os.close(handle)


def _plain(value: Any) -> float | int | str | bool | None:
    """A JSON value: numbers of any library as numbers, the rest as text of bounded length."""
    if value is None or isinstance(value, (bool, float)):
        return value
    if isinstance(value, int) and -_LARGEST <= value <= _LARGEST:
        return value
    if isinstance(value, str):
        return value[:_MAX_TEXT]
    try:
        return float(value)
    except OverflowError:  # an integer or a fraction: no text of it, which may be unbounded
        return math.inf if value > 0 else -math.inf
    except (TypeError, ValueError, RuntimeError):
        return str(value)[:_MAX_TEXT]
