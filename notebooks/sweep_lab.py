"""A training for sweeps, and sweeps that cost nothing: what notebook 15 compares.

As a script it fits 24 noisy points of a sine with a small network and logs its eval loss, which is
measured against the sine itself, without noise: `workbench sweep sweep_lab.py --grid lr=…`.
"""

# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
# ruff: noqa: INP001, S311 - a file beside the notebooks, for their readers

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Callable, Iterator, Sequence
from statistics import mean, median
from typing import Any

import optuna
import torch
from torch.nn import Linear, Sequential, Tanh
from torch.nn.functional import mse_loss

import workbench

Curve = dict[int, float]
"""Step -> eval loss."""
LOOK = 10  # steps
optuna.logging.set_verbosity(optuna.logging.ERROR)


def train(lr: float, hidden: int, steps: int = 180) -> Iterator[tuple[int, float, float]]:
    """Step, training loss and eval loss, after every tenth step."""
    draw = torch.Generator().manual_seed(0)
    x = 4 * torch.rand(24, 1, generator=draw) - 2
    y = torch.sin(2 * x) + 0.4 * torch.randn(24, 1, generator=draw)
    grid = torch.linspace(-2, 2, 200)[:, None]
    torch.manual_seed(0)
    model = Sequential(Linear(1, hidden), Tanh(), Linear(hidden, hidden), Tanh(), Linear(hidden, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    for step in range(1, steps + 1):
        optimizer.zero_grad()
        loss = mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        if step % LOOK == 0:
            with torch.no_grad():
                yield step, loss.item(), mse_loss(model(grid), torch.sin(2 * grid)).item()


def eval_curve(lr: float, hidden: int) -> Curve:
    """The eval losses of one training."""
    return {step: eval_loss for step, _, eval_loss in train(lr, hidden)}


def mean_gap(powers: Callable[[random.Random], Sequence[float]]) -> float:
    """How far the best of some learning rates is from the bottom of a bowl.

    The bowl is the square over powers of ten; its bottom lies in 200 places between -5 and -1.
    """
    draw = random.Random(0)
    places = [draw.uniform(-5, -1) for _ in range(200)]
    return mean(min((power - at) ** 2 for power in powers(draw)) for at in places)


def bowl(trial: Any) -> float:
    """A function of two options that both matter; 0 at its bottom."""
    lr, decay = (
        trial.suggest_float("lr", 1e-5, 1e-1, log=True),
        trial.suggest_float("decay", 0, 0.1),
    )
    return (math.log10(lr) + 3) ** 2 + (20 * (decay - 0.03)) ** 2


def swept(sampler: str, trials: int, function: Callable[[Any], float], seed: int = 0) -> float:
    """The lowest value that one of Optuna's samplers finds."""
    study = optuna.create_study(sampler=getattr(optuna.samplers, sampler)(seed=seed))
    study.optimize(function, n_trials=trials)
    return study.best_value


def typical(sampler: str, trials: int) -> float:
    """The median of 15 sweeps of the bowl."""
    return median(swept(sampler, trials, bowl, seed) for seed in range(15))


def real_sweep(sampler: str, trials: int) -> list[Curve]:
    """The eval curves of the trainings that a sampler chooses."""
    curves: list[Curve] = []

    def one(trial: Any) -> float:
        lr = trial.suggest_float("lr", 1e-4, 1e-1, log=True)
        curves.append(eval_curve(lr, trial.suggest_int("hidden", 4, 64, log=True)))
        return end(curves[-1])

    swept(sampler, trials, one)
    return curves


def end(curve: Curve) -> float:
    """The value at the last step."""
    return curve[max(curve)]


def replay(curves: Sequence[Curve], first: int) -> list[int]:
    """The step to which ASHA would have trained each curve, through Optuna's own pruner."""
    pruner = optuna.pruners.SuccessiveHalvingPruner(min_resource=first, reduction_factor=3)
    study, trained = optuna.create_study(pruner=pruner), list[int]()
    for curve in curves:
        trial, reached = study.ask(), 0
        for step, value in curve.items():
            trial.report(value, step)
            reached = step
            if trial.should_prune():
                break
        study.tell(trial, curve[reached])
        trained.append(reached)
    return trained


def simulated(lowest: float, pace: float) -> Curve:
    """A curve that falls from 1 + lowest to lowest; `pace` is how many steps it takes to 37 %."""
    return {step: lowest + math.exp(-step / pace) for step in range(LOOK, 181, LOOK)}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--hidden", type=int, default=32)
    options = parser.parse_args()
    for _, _, eval_loss in train(options.lr, options.hidden):
        workbench.log(eval_loss=eval_loss)
