"""Number formats, a training in 16 bits, and the grader of the puzzle: what notebook 16 uses.

A value of a format is (1 + fraction) x 2^exponent: the bits of the exponent decide how far it
reaches, the bits of the fraction how fine it is.
"""

# ruff: noqa: INP001, T201 - a file beside the notebooks, for their readers

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import plotly.graph_objects as go
import torch
from torch.nn import Linear, Sequential, Tanh
from torch.nn.functional import cross_entropy

Tensors = tuple[torch.Tensor, ...]


class NumberFormat(NamedTuple):
    """Bits of exponent and fraction; one more is the sign."""

    exponent: int
    fraction: int
    has_infinity: bool = True

    @property
    def bias(self) -> int:
        return 2 ** (self.exponent - 1) - 1

    @property
    def largest(self) -> float:
        """The largest number. e4m3 has no infinity, and so one exponent more for numbers."""
        if self.has_infinity:
            return (2 - 2.0**-self.fraction) * 2.0**self.bias
        return (2 - 2 * 2.0**-self.fraction) * 2.0 ** (self.bias + 1)

    @property
    def smallest_normal(self) -> float:
        """Below it the spacing no longer shrinks, so the relative error grows."""
        return 2.0 ** (1 - self.bias)

    @property
    def smallest(self) -> float:
        """The smallest number above zero; half of it and less becomes zero."""
        return self.smallest_normal * 2.0**-self.fraction

    def spacing(self, value: float) -> float:
        """The distance from `value` to the next larger number."""
        return 2.0 ** (math.floor(math.log2(max(value, self.smallest_normal))) - self.fraction)


FORMATS = {
    "fp32": NumberFormat(8, 23),
    "tf32": NumberFormat(8, 10),
    "bf16": NumberFormat(8, 7),
    "fp16": NumberFormat(5, 10),
    "fp8 e5m2": NumberFormat(5, 2),
    "fp8 e4m3": NumberFormat(4, 3, has_infinity=False),
}
torch.set_num_threads(1)  # the tensors here are small: more threads only wait for each other
STEP_TOKENS = 2**22
"""Tokens of a whole step: the loss of each is divided by them."""
MICRO_BATCH = 256
"""Tokens of the one micro-batch that is computed here."""


class Learner:
    """A small classifier and one micro-batch of a step of four million tokens.

    The loss is the micro-batch's part of the mean over the step, as under gradient accumulation.
    Adam divides by the size of the gradients, so that the other micro-batches are not missed.
    """

    def __init__(self, lr: float = 3e-3) -> None:
        draw = torch.Generator().manual_seed(0)
        self.inputs = torch.randn(MICRO_BATCH, 16, generator=draw)
        self.classes = (self.inputs @ torch.randn(16, 8, generator=draw)).argmax(1)
        torch.manual_seed(0)
        self.model = Sequential(Linear(16, 32), Tanh(), Linear(32, 32), Tanh(), Linear(32, 8))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=lr, eps=1e-20)
        self.inner: list[torch.Tensor] = []

    def backward(self, dtype: torch.dtype, scale: float = 1.0) -> float:
        """Forward and backward under autocast, of `scale` times the loss; the mean loss."""
        self.inner.clear()
        self.optimizer.zero_grad()
        with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
            hidden = self.inputs
            for layer in self.model:
                hidden = layer(hidden)
                hidden.register_hook(self.inner.append)
        loss = cross_entropy(hidden.float(), self.classes, reduction="sum") / STEP_TOKENS
        (scale * loss).backward()
        return loss.item() * STEP_TOKENS / MICRO_BATCH

    def update(self, scale: float = 1.0) -> None:
        """Divide by the scale in fp32, and step unless a gradient overflowed."""
        gradients = [weight.grad for weight in self.model.parameters() if weight.grad is not None]
        for gradient in gradients:
            gradient /= scale
        if all(bool(gradient.isfinite().all()) for gradient in gradients):
            self.optimizer.step()

    def gradients(self) -> torch.Tensor:
        """The sizes of all gradients of activations of the last backward pass."""
        return torch.cat([gradient.float().abs().flatten() for gradient in self.inner])

    def zeros(self) -> float:
        """The share of them that is zero."""
        return (self.gradients() == 0).float().mean().item()


def trained(dtype: torch.dtype, scale: float = 1.0, steps: int = 150) -> list[float]:
    """The losses of a training in that format, with a fixed scale of the loss."""
    learner, losses = Learner(), list[float]()
    for _ in range(steps):
        losses.append(learner.backward(dtype, scale))
        learner.update(scale)
    return losses


def scaled_steps(scaler: torch.amp.GradScaler, steps: int) -> Iterator[tuple[float, bool]]:
    """A training in fp16 with torch's scaler: the scale of each step, and whether it overflowed."""
    learner = Learner()
    for _ in range(steps):
        scale = scaler.get_scale()
        learner.backward(torch.float16, scaler.scale(torch.tensor(1.0)).item())
        scaler.step(learner.optimizer)  # divides by the scale, and steps if all is finite
        scaler.update()
        yield scale, scaler.get_scale() < scale


def trained_weights(
    store: Callable[[torch.Tensor], torch.Tensor], lr: float, steps: int = 200
) -> tuple[list[float], float]:
    """Losses where `store` rounds the weights after each update, and the share of lost updates.

    An update is lost if the weight is the same before and after it.
    """
    learner, losses, lost = Learner(lr), list[float](), 0.0
    weights = list(learner.model.parameters())
    with torch.no_grad():
        for weight in weights:
            weight.copy_(store(weight))
    for _ in range(steps):
        losses.append(learner.backward(torch.bfloat16))
        before = [weight.detach().clone() for weight in weights]
        learner.update()
        with torch.no_grad():
            for weight in weights:
                weight.copy_(store(weight))
        same = [
            (old == new).float().mean().item() for old, new in zip(before, weights, strict=True)
        ]
        lost += sum(same) / len(same) / steps
    return losses, lost


def check_updates(begin: Callable[..., Tensors], add: Callable[..., Tensors]) -> bool:
    """Grade a way to keep weights: 1,000 updates, bytes per weight, distance to the exact sum.

    `begin(weights)` gives the tensors to keep, of which the first are the weights in bf16;
    `add(tensors, update)` gives them after one update. The targets: 4 bytes per weight, and weights
    that are at most one spacing of bf16 away from the exact sum.
    """
    draw = torch.Generator().manual_seed(0)
    start = (1 + torch.rand(1000, generator=draw)).bfloat16()
    exact, kept = start.double(), begin(start.clone())
    for _ in range(1000):
        update = (torch.rand(1000, generator=draw) - 0.2) * 1e-3
        exact, kept = exact + update.double(), add(kept, update)
    if kept[0].dtype != torch.bfloat16:
        print(f"the first tensor must be the weights in bf16, not {kept[0].dtype}\nNot yet.")
        return False
    spacing = 2.0 ** (exact.abs().log2().floor() - FORMATS["bf16"].fraction)
    measured = {
        "bytes": sum(tensor.nbytes for tensor in kept) / start.numel(),
        "spacings": ((kept[0].double() - exact).abs() / spacing).max().item(),
    }
    return _graded(measured, {"bytes": 4.0, "spacings": 1.0})


def _graded(measured: dict[str, float], targets: dict[str, float]) -> bool:
    reached = True
    for name, target in targets.items():
        over = not measured[name] <= target
        print(f"{name:9} {measured[name]:.3g}, target {target:g}: {'too much' if over else 'reached'}")
        reached = reached and not over
    print("Solved." if reached else "Not yet.")
    return reached


def scaled_cast(
    values: torch.Tensor, dtype: torch.dtype = torch.float8_e4m3fn, amax: Any = None
) -> torch.Tensor:
    """To 8 bits and back, with the scale that maps `amax` (default: the largest value) to the end.

    `amax` may have one value per row; what lies beyond it is clipped, as the kernels of fp8 do.
    """
    end = torch.iinfo(dtype).max if dtype == torch.int8 else torch.finfo(dtype).max
    scale = (values.abs().max() if amax is None else torch.as_tensor(amax)) / end
    inside = (values / scale).clamp(-end, end)
    return (inside.round() if dtype == torch.int8 else inside).to(dtype).float() * scale


def error(values: torch.Tensor, rounded: torch.Tensor, among: Sequence[int] | None = None) -> float:
    """The root of the mean square error, relative to that of the values."""
    chosen = slice(None) if among is None else list(among)
    return ((rounded - values)[chosen].norm() / values[chosen].norm()).item()


def outlier_errors(values: torch.Tensor, sizes: Sequence[float]) -> dict[str, list[float]]:
    """The error of all rows but the first, whose first value is `sizes` times 3."""
    errors: dict[str, list[float]] = {}
    for size in sizes:
        spoiled = values.clone()
        spoiled[0, 0] = 3 * size
        rows = spoiled.abs().amax(1, keepdim=True)
        casts = {
            "int8, per tensor": scaled_cast(spoiled, torch.int8),
            "e4m3, per tensor": scaled_cast(spoiled),
            "e4m3, per row": scaled_cast(spoiled, amax=rows),
        }
        for name, rounded in casts.items():
            errors.setdefault(name, []).append(error(spoiled, rounded, range(1, len(values))))
    return errors


_POWERS = {"type": "log", "exponentformat": "power"}
_LOOK = {"height": 330, "template": "plotly_white", "margin": {"t": 30}}


def range_figure() -> go.Figure:
    """The sizes of number that each format holds."""
    every = list(FORMATS.values())
    parts = {
        "full precision": [(number_format.smallest_normal, number_format.largest) for number_format in every],
        "subnormal: fewer digits": [(number_format.smallest, number_format.smallest_normal) for number_format in every],
    }
    bars = [
        go.Bar(
            name=part, y=list(FORMATS), x=[high - low for low, high in ends], orientation="h",
            base=[low for low, _ in ends], marker_color=color,
        )
        for (part, ends), color in zip(parts.items(), ("#1668c7", "#a9c8ec"), strict=True)
    ]  # fmt: skip
    axis = {**_POWERS, "title": "size of a number", "dtick": 10}
    rows = {"autorange": "reversed"}
    return go.Figure(bars, {**_LOOK, "barmode": "overlay", "xaxis": axis, "yaxis": rows})


def spacing_figure() -> go.Figure:
    """The distance of neighbours relative to their size."""
    lines = list[go.Scatter]()
    for name, number_format in FORMATS.items():
        sizes = [
            2.0**power for power in range(-30, 20) if number_format.smallest <= 2.0**power <= number_format.largest
        ]
        spacings = [number_format.spacing(size) / size for size in sizes]
        dash = "dot" if name == "tf32" else "solid"
        line = {"dash": dash, "width": 3}
        lines.append(go.Scatter(name=name, x=sizes, y=spacings, mode="lines", line=line))
    axes = {
        "xaxis": {**_POWERS, "title": "size of a number", "dtick": 2},
        "yaxis": {**_POWERS, "title": "spacing / size"},
    }
    return go.Figure(lines, {**_LOOK, **axes})


def gradient_figure(gradients: torch.Tensor) -> go.Figure:
    """How many gradients have which size, beside the smallest number of fp16."""
    powers = gradients[gradients > 0].log2().tolist()
    axes = {
        "xaxis": {"title": "size of a gradient, as a power of 2"},
        "yaxis": {"title": "gradients"},
    }
    figure = go.Figure([go.Histogram(x=powers, nbinsx=60)], {**_LOOK, **axes})
    return figure.add_vline(math.log2(FORMATS["fp16"].smallest), annotation_text="smallest of fp16")


def line_figure(
    lines: dict[str, list[float]], x_title: str, y_title: str, at: Sequence[float] | None = None
) -> go.Figure:
    """A line for each name; `at` gives their places, on a logarithmic axis."""
    dashes = ("solid", "dash", "solid", "dot")
    drawn = [
        go.Scatter(
            name=name, x=at, y=values, mode="lines", line={"dash": dashes[number % 4], "width": 3}
        )
        for number, (name, values) in enumerate(lines.items())
    ]
    axis = {"title": x_title} if at is None else {**_POWERS, "title": x_title}
    return go.Figure(drawn, {**_LOOK, "xaxis": axis, "yaxis": {"title": y_title}})
