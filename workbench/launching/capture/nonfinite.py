"""The first NaN or infinity of a rank: in which step, and whether the weights or a gradient had it.

Looked up once, on the step that it is noticed. On the CPU that is before the backward pass of the
bad loss, when good weights still tell bad data; on a GPU, whose values come a step late, after it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import Any

from .device_values import is_capturing
from .writers import write_json


class FirstNonFinite:
    """Writes ``rank-N.first-nan.json`` once."""

    def __init__(self, path: str, recorder: Any) -> None:
        self._path = path
        self._recorder = recorder
        self._written = False
        self.scaled = False
        """Whether the optimizer is told by a gradient scaler to skip what overflowed."""

    def forget(self) -> None:
        """The script went back to a state before it; the next one is the first again."""
        self._written = False

    def loss(self, value: float) -> None:
        """A loss that is known before its backward pass."""
        if not self._written and not math.isfinite(value) and not is_capturing():
            self._write(self._recorder.steps + 1, value, None, before_backward=True)

    def line(self, line: dict[str, Any]) -> None:
        """A step's line, when its values have arrived."""
        self.step(line["step"], line.get("loss"), line.get("grad_norm"))

    def step(self, step: int, loss: float | None, norm: float | None) -> None:
        """A step's values."""
        if self._written or is_capturing():
            return
        norm = None if self.scaled else norm
        if not (math.isfinite(loss or 0.0) and math.isfinite(norm or 0.0)):
            self._write(step, loss, norm, before_backward=False)

    def _write(
        self, step: int, loss: float | None, norm: float | None, *, before_backward: bool
    ) -> None:
        self._written = True
        document = {
            "step": step,
            "time": time.time(),
            "loss": loss,
            "grad_norm": norm,
            "before_backward": before_backward,
            "noticed_after_step": self._recorder.steps,
        }
        try:
            document.update(_look(self._recorder, gradients=not before_backward))
        except Exception:
            document.update(where=None, kind=None)
        write_json(self._path, document)


def _look(recorder: Any, *, gradients: bool) -> dict[str, str | None]:
    """The first parameter, else gradient, that is not finite; neither: it came with the loss."""
    named = list(_parameters(recorder))
    for name, parameter in named:
        if not _finite(parameter):
            return {"where": name, "kind": "parameter"}
    for name, parameter in named if gradients else ():
        if parameter.grad is not None and not _finite(parameter.grad):
            return {"where": name, "kind": "gradient"}
    return {"where": None, "kind": "loss" if named else None}


def _parameters(recorder: Any) -> Iterator[tuple[str, Any]]:
    """Parameters with their names: of the wrapped models, else by place in the optimizer."""
    models = list(recorder.models) or list(getattr(recorder.accelerator, "_models", ()))
    for model in models:
        for name, parameter in model.named_parameters():
            yield name.removeprefix("module.").removeprefix("_orig_mod."), parameter
    if models or recorder.lead() is None:
        return
    for number, group in enumerate(recorder.lead().param_groups):
        for place, parameter in enumerate(group["params"]):
            yield f"group {number}, parameter {place} {tuple(parameter.shape)}", parameter


def _finite(value: Any) -> bool:
    """Of this rank's part alone: the others may not be looking, so nothing is communicated."""
    value = getattr(value, "ds_tensor", value)  # ZeRO-3 keeps a parameter's shard here
    value = getattr(value.detach(), "_local_tensor", value.detach())
    return not value.is_floating_point() or bool(value.isfinite().all())
