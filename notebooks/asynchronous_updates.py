"""Synchronous and asynchronous training on one clock, and the puzzle's grader: for notebook 17.

The gradients are real: a small network learns by stochastic gradients. The clock is simulated: each
worker's time for a gradient is drawn, so that a training of minutes on eight workers takes seconds.
"""

# ruff: noqa: INP001, T201 - a file beside the notebooks, for their readers

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import plotly.graph_objects as go
import torch
from plotly.subplots import make_subplots
from torch.nn.functional import cosine_similarity, cross_entropy

torch.set_num_threads(1)  # the tensors here are small: more threads only wait for each other
WORKERS = 8
MICRO_BATCH = 16
"""Examples in one worker's gradient."""
SPREAD = 0.25
"""Of a worker's times: the standard deviation of their logarithm. The median is 1."""
SLOWNESS = 3.0
"""A slow worker's times, over the others'."""
TIME = 20.0
"""When trainings are compared, in simulated units of time: a usual gradient takes about one.

Until then eight equal workers make 13 synchronous updates, or about 150 asynchronous ones.
"""
SYNCHRONOUS_LR = 3.2
"""The puzzle's learning rate: of those that the notebook tries with one slow worker, the best for
synchronous updates with one backup. Without the backup it is 1.6."""
TARGET = 0.03
"""Loss at TIME that solves the puzzle."""
_LOOK = {"height": 340, "template": "plotly_white", "margin": {"t": 30, "b": 50}}


class Curve(NamedTuple):
    """A training: the loss over all examples at some times, and how old each gradient was."""

    times: list[float]
    losses: list[float]
    ages: list[int]
    """Updates between the read of the weights and the use of the gradient, for each gradient."""

    def loss_at(self, time: float) -> float:
        """The last loss known at `time`."""
        return next(
            loss
            for at, loss in zip(reversed(self.times), reversed(self.losses), strict=True)
            if at <= time
        )


class Task:
    """1,024 points of eight classes, and a network of one hidden layer as one vector of weights."""

    SHAPES = ((32, 16), (32,), (8, 32), (8,))

    def __init__(self) -> None:
        draw = torch.Generator().manual_seed(0)
        centers = 1.2 * torch.randn(8, 16, generator=draw)
        self.classes = torch.arange(1024) % 8
        self.points = centers[self.classes] + torch.randn(1024, 16, generator=draw)
        self.draw = draw
        sizes = [math.prod(shape) for shape in self.SHAPES]
        self.start = 0.2 * torch.randn(sum(sizes), generator=draw)
        self.sizes = sizes

    def layers(self, weights: torch.Tensor) -> list[torch.Tensor]:
        """Weights and bias of the two layers, as views of the vector."""
        parts = zip(weights.split(self.sizes), self.SHAPES, strict=True)
        return [part.view(shape) for part, shape in parts]

    def loss(self, weights: torch.Tensor, rows: torch.Tensor | slice = slice(None)) -> torch.Tensor:
        """The mean loss of these rows."""
        first, bias, last, last_bias = self.layers(weights)
        hidden = torch.tanh(self.points[rows] @ first.T + bias)
        return cross_entropy(hidden @ last.T + last_bias, self.classes[rows])

    def gradient(self, weights: torch.Tensor, examples: int = MICRO_BATCH) -> torch.Tensor:
        """Of a drawn batch, at these weights."""
        rows = torch.randint(len(self.points), (examples,), generator=self.draw)
        leaf = weights.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(self.loss(leaf, rows), leaf)
        return gradient


class Clock:
    """What each worker's gradients take, in units of time; the first `slow` workers are slower."""

    def __init__(self, slow: int = 0) -> None:
        self.draw = torch.Generator().manual_seed(1)
        self.slow = slow

    def seconds(self, worker: int) -> float:
        """What the next gradient takes: simulated seconds are units of time."""
        noise = torch.randn((), generator=self.draw).item()
        return math.exp(SPREAD * noise) * (SLOWNESS if worker < self.slow else 1)


def synchronous(lr: float, until: float, slow: int = 0, backups: int = 0) -> Curve:
    """Each update is the mean of all workers' gradients; the last `backups` are not waited for."""
    task, clock = Task(), Clock(slow)
    weights, now = task.start.clone(), 0.0
    curve = Curve([0.0], [task.loss(weights).item()], [])
    used = WORKERS - backups
    while now < until:
        now += sorted(clock.seconds(worker) for worker in range(WORKERS))[used - 1]
        weights -= lr * task.gradient(weights, used * MICRO_BATCH)
        curve.ages.extend([0] * used)
        curve.times.append(now)
        curve.losses.append(task.loss(weights).item())
    return curve


def asynchronous(
    lr: float, until: float, slow: int = 0, factor: Callable[[int], float] | None = None
) -> Curve:
    """Each gradient is applied when it is there, by lr x factor(its age); no worker waits."""
    task, clock = Task(), Clock(slow)
    weights, version = task.start.clone(), 0
    curve = Curve([0.0], [task.loss(weights).item()], [])
    running = [(clock.seconds(worker), worker, 0, weights.clone()) for worker in range(WORKERS)]
    heapq.heapify(running)
    while running[0][0] < until:
        now, worker, read_at, read = heapq.heappop(running)
        age = version - read_at
        weights -= lr * (factor(age) if factor else 1) * task.gradient(read)
        version += 1
        heapq.heappush(running, (now + clock.seconds(worker), worker, version, weights.clone()))
        curve.ages.append(age)
        if version % WORKERS == 0:
            curve.times.append(now)
            curve.losses.append(task.loss(weights).item())
    return curve


def distances(lr: float, age: int, steps: int = 400) -> list[float]:
    """Gradient descent on x²/2 with gradients that are `age` updates old: |x| after each step."""
    path = [1.0] * (age + 1)
    for _ in range(steps):
        path.append(path[-1] - lr * path[-1 - age])
    return [abs(x) for x in path]


def largest_lr(age: int) -> float:
    """The largest learning rate at which `distances` shrink, by bisection."""
    low, high = 0.0, 4.0
    for _ in range(30):
        middle = (low + high) / 2
        last = distances(middle, age, 4000)[-2 * age - 2 :]
        low, high = (middle, high) if max(last) < 1 else (low, middle)
    return low


def stage_ages(stages: int) -> list[int]:
    """PipeDream's pipeline: updates between a micro-batch's forward and backward, per stage.

    Played: in each tick a stage does one forward and one backward of the one-forward-one-backward
    order, and updates its own weights after each backward.
    """
    ages = list[int]()
    for stage in range(stages):
        waiting, updates, age = list[int](), 0, 0
        for _ in range(4 * stages):
            waiting.append(updates)
            if len(waiting) == stages - stage:  # warm: from now on a backward for each forward
                age = updates - waiting.pop(0)
                updates += 1
        ages.append(age)
    return ages


def mixed_cosines(lr: float, ages: Sequence[int]) -> list[float]:
    """How a gradient points whose backward uses newer weights than its forward did.

    Cosines between the first layer's gradient with the second layer's weights as in forward, and
    with them `age` updates later, for each age; 1 is the same direction.
    """
    task = Task()
    weights = task.start.clone()
    old, exact = weights.clone(), _first_layer(task, weights, weights)
    cosines = list[float]()
    for update in range(max(ages) + 1):
        if update in ages:
            mixed = _first_layer(task, old, weights)
            cosines.append(cosine_similarity(mixed, exact, 0).item())
        weights -= lr * task.gradient(weights, 256)
    return cosines


def _first_layer(task: Task, forward: torch.Tensor, backward: torch.Tensor) -> torch.Tensor:
    """The first layer's gradient: activations by `forward`, the way back through `backward`."""
    first, bias, last, last_bias = task.layers(forward)
    hidden = torch.tanh(task.points @ first.T + bias)
    errors = torch.softmax(hidden @ last.T + last_bias, 1)
    errors[torch.arange(len(errors)), task.classes] -= 1
    inner = (errors @ task.layers(backward)[2]) * (1 - hidden**2)
    return (inner.T @ task.points / len(errors)).flatten()


def work_spans(until: float, slow: int, *, waits: bool) -> Iterator[tuple[int, float, float]]:
    """Worker, start and seconds of each gradient; with `waits` all begin together."""
    clock, starts = Clock(slow), [0.0] * WORKERS
    while min(starts) < until:
        for worker in range(WORKERS):
            if starts[worker] < until:
                yield worker, starts[worker], (seconds := clock.seconds(worker))
                starts[worker] += seconds
        if waits:
            starts = [max(starts)] * WORKERS


def timeline_figure(slow: int = 1, until: float = 12.0) -> go.Figure:
    """Who computes when: above with a wait for the slowest, below without."""
    figure = make_subplots(2, 1, shared_xaxes=True, vertical_spacing=0.08)
    for row, (name, waits) in enumerate({"synchronous": True, "asynchronous": False}.items(), 1):
        spans = list(work_spans(until, slow, waits=waits))
        workers, starts, seconds = zip(*spans, strict=True)
        look = {"color": ("#2a6fbb", "#b5591c")[row - 1], "line": {"color": "white", "width": 1}}
        labels = [f"worker {worker}" for worker in workers]
        figure.add_bar(
            name=name,
            base=starts,
            x=seconds,
            y=labels,
            orientation="h",
            marker=look,
            row=row,
            col=1,
        )
    figure.update_yaxes(autorange="reversed")
    figure.update_xaxes(range=[0, until])
    figure.update_xaxes(title="time, in usual gradients", row=2, col=1)
    return figure.update_layout(**_LOOK | {"height": 460, "barmode": "overlay"})


def rate_figure(ends: dict[str, list[float]], rates: Sequence[float]) -> go.Figure:
    """The loss reached against the learning rate, a line for each way to update."""
    dashes = ("solid", "dash", "dot", "dashdot")
    lines = [
        go.Scatter(name=name, x=rates, y=losses, line={"dash": dash, "width": 3})
        for (name, losses), dash in zip(ends.items(), dashes, strict=False)
    ]
    axes = {
        "xaxis": {"type": "log", "title": "learning rate", "tickvals": list(rates)},
        "yaxis": {"type": "log", "title": "loss", "dtick": 1},
    }
    return go.Figure(lines, {**_LOOK, **axes})


def check_factor(factor: Callable[[int], float]) -> bool:
    """Train at the synchronous rate with this factor, without and with a slow worker; grade it."""
    solved = True
    for slow, name in enumerate(("eight equal workers", "one of them slow")):
        loss = asynchronous(SYNCHRONOUS_LR, TIME, slow, factor).loss_at(TIME)
        reached = loss <= TARGET
        solved &= reached
        print(f"{name:20} loss {loss:.3f}, target {TARGET}: {'reached' if reached else 'too high'}")
    print("Solved." if solved else "Not yet.")
    return solved
