"""Fails at a step, catches it, and goes on from its last checkpoint; or only seems to.

Prints the step number of its own loop at each step.
"""

import argparse
import copy
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("kind")
parser.add_argument("--fail-at", type=int, default=10)
parser.add_argument("--save-every", type=int, default=6)
parser.add_argument("--steps", type=int, default=14)
options = parser.parse_args()
WORLD = int(os.environ["WORLD_SIZE"])


def build(optimizer=torch.optim.AdamW):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 1))
    model = DistributedDataParallel(model) if WORLD > 1 else model
    return model, optimizer(model.parameters(), lr=0.01)


def step(model, optimizer, number):
    optimizer.zero_grad()
    torch.manual_seed(number)
    model(torch.randn(4, 8)).pow(2).mean().backward()
    optimizer.step()
    print("step", number, flush=True)


def train(model, optimizer, begin=0, *, fails=True, with_optimizer=True):
    """From step `begin` on, with a checkpoint now and then."""
    for number in range(begin + 1, options.steps + 1):
        step(model, optimizer, number)
        if number % options.save_every == 0 and int(os.environ["RANK"]) == 0:
            state = {"model": model.state_dict(), "step": number}
            torch.save(
                {**state, "optimizer": optimizer.state_dict()} if with_optimizer else state, "last"
            )
        if fails and number == options.fail_at:
            raise RuntimeError("a worker was lost")


def retried(make, *, with_optimizer=True, rebuilds=True):
    """What a retry loop around the training does."""
    model, optimizer = make()
    try:
        train(model, optimizer, with_optimizer=with_optimizer)
    except RuntimeError:
        model, optimizer = make() if rebuilds else (model, optimizer)
    if WORLD > 1:
        dist.barrier()
    state = torch.load("last")
    model.load_state_dict(state["model"])
    if with_optimizer:
        optimizer.load_state_dict(state["optimizer"])
    train(model, optimizer, state["step"], fails=False)


def momentum(parameters, lr):
    return torch.optim.SGD(parameters, lr=lr, momentum=0.9)


def process():
    """The second process of this rank, as torchelastic starts it."""
    model, optimizer = build()
    begin = 0
    if Path("last").exists():
        state = torch.load("last")
        begin = state["step"]
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        train(model, optimizer, begin, fails=False)
        return
    try:
        train(model, optimizer)
    except RuntimeError:
        sys.exit(1)


def trials():
    """Meta-learning: from the same weights again and again, never back in the training."""
    model, optimizer = build()
    for _ in range(3):
        weights = copy.deepcopy(model.state_dict())
        for number in range(4):
            step(model, optimizer, number)
        model.load_state_dict(weights)


def looks_back():
    """Evaluates its best state, and continues where it was."""
    model, optimizer = build()
    for number in range(1, 9):
        step(model, optimizer, number)
        if number == 4:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "best")
        if number == 6:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "now")
            for name in ("best", "now"):
                state = torch.load(name)
                model.load_state_dict(state["model"])
                optimizer.load_state_dict(state["optimizer"])


def folds():
    """Two trainings from the same beginning."""
    model, optimizer = build()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "begin")
    for _ in range(2):
        state = torch.load("begin")
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        for number in range(1, 5):
            step(model, optimizer, number)


def variants(optimizer):
    """Fine-tunings, each from the same saved weights with a new optimizer."""
    model, first = build(optimizer)
    for number in range(1, 7):
        step(model, first, number)
    torch.save(model.state_dict(), "trained")
    for _ in range(3):
        tuned, own = build(optimizer)
        tuned.load_state_dict(torch.load("trained"))
        for number in range(1, 5):
            step(tuned, own, number)


if WORLD > 1:
    dist.init_process_group("gloo")
KINDS = {
    "adam": lambda: retried(build),
    "same-objects": lambda: retried(build, rebuilds=False),
    "momentum": lambda: retried(lambda: build(momentum)),
    "weights-alone": lambda: retried(lambda: build(torch.optim.SGD), with_optimizer=False),
    "process": process,
    "trials": trials,
    "looks-back": looks_back,
    "folds": folds,
    "variants": lambda: variants(torch.optim.AdamW),
    "stateless-variants": lambda: variants(torch.optim.SGD),
}
KINDS[options.kind]()
