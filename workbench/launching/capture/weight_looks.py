"""A few numbers of a few weights now and then, by which ranks that hold copies can be compared.

At steps 8, 16, 32 and 64, and then at each 64th, up to four parameters are looked at, 1024 elements
of each: sums with signs, the norm, and the norm of the gradient. On a GPU the numbers are copied
without waiting for the device, and written with the next look. Nothing is communicated.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import json
import math
from typing import Any

from .writers import LineWriter

_FIRST, _EVERY = 8, 64  # steps
_PARAMETERS, _ELEMENTS = 4, 1024


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
        self._waiting: collections.deque[tuple[dict[str, Any], Any]] = collections.deque(maxlen=4)

    def step(self, recorder: Any) -> None:
        """An optimizer step ended; `recorder` has counted it."""
        number = recorder.steps
        if number == self._last or not _due(number):
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

        values = torch.stack([_numbers(torch, parameter) for _, parameter in self._chosen])
        if values.is_cuda:
            waiting = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            values = waiting.copy_(values, non_blocking=True)
        line = {
            "step": number,
            "lr": max(float(group.get("lr") or 0) for group in optimizer.param_groups),
            "copies": self._copies and not WeightLooks.averages,
            "half": any(parameter.dtype.itemsize < 4 for _, parameter in self._chosen),
            "names": [name for name, _ in self._chosen],
        }
        self._waiting.append((line, values))
        if not values.is_pinned():
            self.write()
        elif len(self._waiting) > 1:
            self._emit(*self._waiting.popleft())  # of 8 steps and more ago: the device is done

    def write(self) -> None:
        """Write what still waits; the device must be done with it."""
        while self._waiting:
            self._emit(*self._waiting.popleft())

    def _emit(self, line: dict[str, Any], values: Any) -> None:
        numbers = [
            [number if math.isfinite(number) else None for number in row] for row in values.tolist()
        ]
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


def _numbers(torch: Any, parameter: Any) -> Any:
    """Sum, sum with signs, norm, and the norm of the gradient; NaN = it has none."""
    values = _flat(parameter).float()
    gradient = parameter.grad
    norm = values.new_tensor(float("nan")) if gradient is None else _flat(gradient).float().norm()
    signed = values[::2].sum() * 2 - values.sum()
    return torch.stack([values.sum(), signed, values.norm(), norm])
