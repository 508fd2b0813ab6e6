"""What a script or its framework logs by name: one line per step, written by a thread.

The functions of trackers and trainers that take names and values are observed after they have
returned. Of calls inside each other only the outermost counts: Trainer's own log hands the same
values to TensorBoard and W&B, under other names.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from .device_values import DeviceValues
from .writers import LaterLines

MAX_NAME = 200
_MAX_NAMES = 1000
_DRAIN_SECONDS = 1.0

Values = Mapping[Any, Any]


class LoggedValues:
    """Numbers of this rank by name; those of one step share a line as far as they come together."""

    def __init__(self, path: str, flush: float = _DRAIN_SECONDS) -> None:
        self._lines = LaterLines(path, self._take, lambda: None)
        self._flush_seconds = flush
        self._lock = threading.Lock()
        self._open: dict[str, Any] | None = None
        self._names: set[str] = set()
        self._waiting: DeviceValues[tuple[int, float, list[str]]] = DeviceValues()
        self.depth = 0  # of observed calls inside each other

    def add(self, step: int, values: Values) -> None:
        """Take the numbers among `values`; a device is never waited for."""
        ready: list[tuple[str, float]] = []
        on_device: list[tuple[str, Any]] = []
        for name, value in values.items():
            text = str(name)[:MAX_NAME]
            if text not in self._names:
                if len(self._names) >= _MAX_NAMES:
                    continue
                self._names.add(text)
            if getattr(value, "is_cuda", False):
                on_device.append((text, value))
            elif (number := _number(value)) is not None:
                ready.append((text, number))
        self.await_device(step, time.time(), on_device)
        for name, number in ready:
            self._put(step, time.time(), name, number)

    def await_device(self, step: int, at: float, on_device: list[tuple[str, Any]]) -> None:
        """Take values on a device when they have come; write those that have by now.

        `at`: Unix seconds, when they were logged. What holds no single number is passed over.
        """
        with self._lock:
            by_device: dict[Any, list[tuple[str, Any]]] = {}
            for name, value in on_device:
                with contextlib.suppress(Exception):
                    tensor = _single(value)
                    if tensor is not None:
                        by_device.setdefault(tensor.device, []).append((name, tensor))
            for pairs in by_device.values():
                names, tensors = [name for name, _ in pairs], [tensor for _, tensor in pairs]
                self._waiting.put((step, at, names), tensors)
            arrived = self._waiting.arrived() if self._waiting else []
        self._put_arrived(arrived)

    def _put_arrived(
        self, arrived: list[tuple[tuple[int, float, list[str]], list[float] | None]]
    ) -> None:
        for (step, at, names), numbers in arrived:
            for name, number in zip(names, numbers or (), strict=False):
                self._put(step, at, name, number)

    def _put(self, step: int, at: float, name: str, number: float) -> None:
        with self._lock:
            line = self._open
            if line is not None and line["step"] == step:
                line["values"][name] = number
                return
            line = {"time": round(at, 6), "step": step, "values": {name: number}}
            self._open = line
        self._lines.write(line)

    def _take(self, line: dict[str, Any]) -> dict[str, Any]:
        """The line as it is to be written: from now on no one adds to it."""
        with self._lock:
            if self._open is line:
                self._open = None
        return line

    def drain(self) -> None:
        """Write what waits, at the end of the process."""
        with contextlib.suppress(Exception):
            with self._lock:
                arrived = self._waiting.drain(_DRAIN_SECONDS)
            self._put_arrived(arrived)
        self._lines.flush(self._flush_seconds)


def _number(value: Any) -> float | None:
    """The number that a value of any library is; None for what is none."""
    if isinstance(value, bool):
        return None
    try:  # a number of any library has it, a text has not
        return float(value) if hasattr(value, "__float__") else None
    except OverflowError:
        return math.inf if value > 0 else -math.inf
    except Exception:
        return None


def _single(value: Any) -> Any:
    """The one element on this rank's device; None where there are more, or others have parts."""
    tensor = value.detach()
    if hasattr(tensor, "placements"):  # a DTensor: nothing is communicated for the record
        if not all(placement.is_replicate() for placement in tensor.placements):
            return None
        tensor = tensor.to_local()
    return tensor if tensor.numel() == 1 else None


def observe(
    recorder: Any, owner: Any, name: str, values_of: Callable[..., Values], *, lead: bool = False
) -> None:
    """Wrap the function `name` of a class or module: what `values_of` its arguments is recorded.

    `lead`: on rank 0 alone, of what all ranks log alike.
    """
    call = getattr(owner, name)

    @functools.wraps(call)
    def observed(*args: Any, **kwargs: Any) -> Any:
        logged = recorder.logged
        logged.depth += 1
        try:
            return call(*args, **kwargs)
        finally:
            logged.depth -= 1
            if not logged.depth and os.getpid() == recorder.owner:
                with contextlib.suppress(Exception):
                    if not lead or recorder.rank == 0:
                        logged.add(recorder.steps, values_of(*args, **kwargs))

    setattr(owner, name, observed)


def patch_summary_writer(recorder: Any, module: Any) -> None:
    """torch.utils.tensorboard.writer and tensorboardX.writer."""
    observe(recorder, module.SummaryWriter, "add_scalar", _scalar)
    observe(recorder, module.SummaryWriter, "add_scalars", _scalars)


def _scalar(_writer: Any, tag: Any, scalar_value: Any, *_: Any, **__: Any) -> Values:
    return {tag: scalar_value}


def _scalars(_writer: Any, main_tag: Any, tag_scalar_dict: Values, *_: Any, **__: Any) -> Values:
    return {f"{main_tag}/{tag}": value for tag, value in tag_scalar_dict.items()}


def patch_method_log(recorder: Any, owner: Any, names: tuple[str, ...], *, lead: bool) -> None:
    """Methods whose first argument is the mapping of names and values."""
    for name in names:
        if hasattr(owner, name):
            observe(recorder, owner, name, _first, lead=lead)


def _first(_owner: Any, values: Any = None, *_: Any, **more: Any) -> Values:
    logged = values if values is not None else next(iter(more.values()), None)
    return logged if isinstance(logged, Mapping) else {}  # pyright: ignore[reportUnknownVariableType]


def patch_wandb(recorder: Any, module: Any) -> None:
    """wandb.sdk.wandb_run."""
    observe(recorder, module.Run, "log", _nested)


def _nested(*args: Any, **kwargs: Any) -> Values:
    """A dictionary in another one is names with a dot between, as W&B shows them."""
    return dict(_flat(_first(*args, **kwargs), ""))


def _flat(values: Values, prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")  # pyright: ignore[reportUnknownArgumentType]
        else:
            yield f"{prefix}{name}", value


def patch_lightning(recorder: Any, module: Any) -> None:
    """(lightning.pytorch|pytorch_lightning).trainer.connectors.logger_connector.logger_connector."""
    patch_method_log(recorder, module._LoggerConnector, ("log_metrics",), lead=True)  # noqa: SLF001


def patch_functions(recorder: Any, module: Any) -> None:
    """Of trackio and mlflow.tracking.fluent: functions of the module."""
    for name in ("log", "log_metrics"):
        if callable(getattr(module, name, None)):
            observe(recorder, module, name, functools.partial(_first, None))
    if callable(getattr(module, "log_metric", None)):
        observe(recorder, module, "log_metric", _pair)


def _pair(key: Any, value: Any, *_: Any, **__: Any) -> Values:
    return {key: value}
