"""A few numbers of a few weights now and then, by which ranks that hold copies can be compared.

At steps 8, 16, 32 and 64, and then at each 64th, up to four parameters are looked at, 1024 elements
of each: sums with signs, the norm, and the norm of the gradient. On a GPU the numbers are copied
without waiting for the device, and written with a later look. Nothing is communicated.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
from typing import Any

from .device_values import DeviceValues, is_capturing
from .writers import LineWriter

_FIRST, _EVERY = 8, 64  # steps
_PARAMETERS, _ELEMENTS = 4, 1024
_NUMBERS = 4  # of a parameter
_DRAIN_SECONDS = 0.5


class WeightLooks:
    """Writes ``rank-N.weights.jsonl``."""

    averages = False
    """Whether the script averages its weights now and then: between, they may differ."""

    def __init__(self, path: str) -> None:
        self._writer = LineWriter(path)
        self._last = 0
        self._optimizer = 0  # whose parameters were chosen
        self._chosen: list[tuple[str, Any]] = []
        self._copies = False
        self._waiting: DeviceValues[dict[str, Any]] = DeviceValues()

    def step(self, recorder: Any) -> None:
        """An optimizer step ended; `recorder` has counted it."""
        number = recorder.steps
        if number == self._last or not _due(number) or is_capturing():
            return
        self._last = number
        optimizer = recorder.lead()
        if optimizer is None:
            return
        if id(optimizer) != self._optimizer:
            self._optimizer = id(optimizer)
            self._choose(recorder, optimizer)
        if self._chosen:
            self._look(number, optimizer)

    def _choose(self, recorder: Any, optimizer: Any) -> None:
        """Parameters that DDP keeps alike on all ranks, else some of the optimizer's."""
        each = sorted((_replicated(model, recorder) for model in recorder.models), key=_names)
        named = [pair for model in each for pair in model]  # in one order on all ranks
        self._copies = bool(named)
        if not named:
            named = [
                (f"group {number}, parameter {place}", parameter)
                for number, group in enumerate(optimizer.param_groups)
                for place, parameter in enumerate(group["params"])
            ]
        named = [pair for pair in named if pair[1].requires_grad and _flat(pair[1]).numel() > 1]
        last = len(named) - 1
        places = {round(last * number / (_PARAMETERS - 1)) for number in range(_PARAMETERS)}
        self._chosen = [named[place] for place in sorted(places)] if named else []

    def _look(self, number: int, optimizer: Any) -> None:
        import torch  # noqa: PLC0415  (there: an optimizer stepped)

        values: Any = torch.stack([_numbers(parameter) for _, parameter in self._chosen])
        rates = [group.get("lr") for group in optimizer.param_groups]
        on_gpu = [rate for rate in rates if getattr(rate, "is_cuda", False)]
        rates = [float(rate or 0) for rate in rates if not getattr(rate, "is_cuda", False)]
        line = {
            "step": number,
            "lr": max(rates, default=0.0),
            "copies": self._copies and not WeightLooks.averages,
            "half": any(parameter.dtype.itemsize < 4 for _, parameter in self._chosen),
            "names": [name for name, _ in self._chosen],
        }
        if values.is_cuda:
            self._waiting.put(line, (values, *on_gpu))
            self._emit(self._waiting.arrived())
        else:
            self._write(line, values.tolist())

    def write(self) -> None:
        """Write what still waits, at the end of the process; a hung device is not waited for."""
        self._emit(self._waiting.drain(_DRAIN_SECONDS))

    def _emit(self, arrived: list[tuple[dict[str, Any], list[float] | None]]) -> None:
        for line, numbers in arrived:
            if numbers is not None:
                count = len(line["names"]) * _NUMBERS
                line["lr"] = max(line["lr"], *numbers[count:], 0.0)
                rows = [numbers[at : at + _NUMBERS] for at in range(0, count, _NUMBERS)]
                self._write(line, rows)

    def _write(self, line: dict[str, Any], rows: list[list[float]]) -> None:
        numbers = [[number if math.isfinite(number) else None for number in row] for row in rows]
        text = json.dumps({**line, "values": numbers}, separators=(",", ":"))
        self._writer.write(text.encode() + b"\n")


def patch_averaging(owner: str) -> Any:
    """An action on a module: its class `owner` averages weights over the ranks."""

    def patch(module: Any) -> None:
        kind = getattr(module, owner)
        construct = kind.__init__

        @functools.wraps(construct)
        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            WeightLooks.averages = True
            construct(self, *args, **kwargs)

        kind.__init__ = init

    return patch


def _due(step: int) -> bool:
    return step % _EVERY == 0 or (_FIRST <= step < _EVERY and step & (step - 1) == 0)


def _replicated(model: Any, recorder: Any) -> list[tuple[str, Any]]:
    """Parameters of a DDP model that all ranks of the run hold."""
    with contextlib.suppress(Exception):
        ignored = set(getattr(model.module, "_ddp_params_and_buffers_to_ignore", ()))
        if type(model).__name__ == "DistributedDataParallel" and (
            model.process_group.size() == recorder.world_size
        ):
            return [
                (name, parameter)
                for name, parameter in model.module.named_parameters()
                if name not in ignored and not hasattr(parameter, "placements")
            ]
    return []


def _names(named: list[tuple[str, Any]]) -> list[str]:
    return [name for name, _ in named]


def _flat(tensor: Any) -> Any:
    """Up to 1024 elements of this rank's part, evenly over it; a view where it can be one."""
    local = tensor.detach()
    local = getattr(local, "_local_tensor", local)
    return local.reshape(-1)[:: max(1, local.numel() // _ELEMENTS)][:_ELEMENTS]


def _numbers(parameter: Any) -> Any:
    """Sum, sum with signs, norm, and the norm of the gradient; NaN = it has none."""
    import torch  # noqa: PLC0415  (there: an optimizer stepped)

    values = _flat(parameter).float()
    gradient = parameter.grad
    norm = values.new_full((), float("nan")) if gradient is None else _flat(gradient).float().norm()
    signed = values[::2].sum() * 2 - values.sum()
    return torch.stack([values.sum(), signed, values.norm(), norm])
