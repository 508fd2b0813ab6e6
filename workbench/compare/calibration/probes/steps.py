"""A few real steps of the embedded recipe's model, at sizes of their own, phase by phase."""

# The recipes' modules are loaded by name, as the recipes do it; torch is only partly typed.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import itertools
import math
import statistics
import time
from typing import Any, NamedTuple

import torch
from torch.nn.parallel import DistributedDataParallel

from workbench.compare.calibration.probes.process_group import MOST, ProcessGroup, spread
from workbench.estimate.calibration_rows import MeasuredStep


class Shape(NamedTuple):
    """What one measured step trains, on each rank."""

    layers: int
    hidden: int
    heads: int
    seq_len: int
    micro_batch: int


# Narrow, wide, and many tokens: apart enough to tell products, passes over memory and the time of
# launching operations from each other.
CPU_SHAPES = (
    Shape(4, 96, 2, 64, 4),
    Shape(2, 224, 4, 128, 8),
    Shape(2, 576, 9, 128, 2),
    Shape(3, 352, 4, 96, 4),
)
GPU_SHAPES = (Shape(6, 640, 10, 1024, 16), Shape(10, 1280, 20, 1024, 8))
FEWEST_STEPS = 10  # a third of them without exchange
LEAST_BUDGET = 0.5  # seconds; for less, half of them have to do
LATE = 3.0  # times its budget, after which six steps have to do: the host is busy
FASTEST_SHARE = 0.75  # the slowest quarter is the host's other work
PHASES = 4  # forward, backward, update, all


class Trainer:
    """Model, optimizer and data of one shape, as recipes/gpt.py has them."""

    def __init__(self, group: ProcessGroup, shape: Shape, precision: str) -> None:
        gpt: Any = importlib.import_module("gpt_model")
        self.group, self.shape, self.precision = group, shape, precision
        self.corpus: Any = importlib.import_module("corpus")
        self.loss: Any = gpt.loss
        model = gpt.GPT(shape.layers, shape.hidden, shape.heads)
        gpt.initialise(model, shape.hidden, 0)
        model = model.to(group.device)
        optimizers: Any = importlib.import_module("optimizers")
        self.optimizer = optimizers.build("adamw-fused", model, 1e-4)
        self.model: Any = model
        if group.size > 1:
            cards = [group.device] if group.device.type == "cuda" else None
            self.model = DistributedDataParallel(model, device_ids=cards, process_group=group.group)
        self.data = torch.randint(0, 256, (1 << 20,), dtype=torch.uint8).to(group.device)
        self.number = 0
        self.waits = True  # for the card at the end of each phase

    def step(self, *, exchange: bool) -> tuple[float, ...]:
        """Seconds of forward, backward, update and all; a card is waited for at each."""
        group, shape = self.group, self.shape
        times = [self._now()]
        share = self.corpus.Share(group.rank, group.size, shape.micro_batch)
        self.number += 1
        inputs, targets = self.corpus.micro_batch(
            self.data, share, shape.seq_len, key=self.number, index=0, of=1
        )
        sync_context = (
            self.model.no_sync() if group.size > 1 and not exchange else contextlib.nullcontext()
        )
        low = torch.autocast(group.device.type, torch.bfloat16, enabled=self.precision == "bf16")
        with sync_context:
            with low:
                loss = self.loss(self.model(inputs), targets)
            times.append(self._now())
            loss.backward()
        times.append(self._now())
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        times.append(self._now())
        forward, backward, update = (b - a for a, b in itertools.pairwise(times))
        return forward, backward, update, times[-1] - times[0]

    def _now(self) -> float:
        if self.waits:
            self.group.finish()
        return time.perf_counter()


def measure(group: ProcessGroup, shape: Shape, budget: float) -> list[dict[str, Any]]:
    """One row of `MeasuredStep`."""
    precision = "bf16" if group.device.type == "cuda" else "fp32"
    trainer = Trainer(group, shape, precision)
    for _ in range(2):
        trainer.step(exchange=True)
    once = trainer.step(exchange=True)[-1]
    fewest = FEWEST_STEPS if budget >= LEAST_BUDGET else FEWEST_STEPS // 2
    count = group.broadcast(min(MOST, max(fewest, int(budget / max(once, 1e-6)))))
    group.barrier()
    # Steps with and without exchange take turns: what the host does meanwhile hits both alike.
    own: list[tuple[float, ...]] = []
    began = time.perf_counter()
    for turn in range(count):
        own.append(trainer.step(exchange=group.size == 1 or bool(turn % 3)))
        late = time.perf_counter() - began > LATE * budget
        if turn % 3 == 2 and turn > 3 and group.broadcast(int(late)):
            break
    flat = group.mean([seconds for times in own for seconds in times])
    rounds = [tuple(flat[at : at + PHASES]) for at in range(0, len(flat), PHASES)]
    full = [times for turn, times in enumerate(rounds) if group.size == 1 or turn % 3]
    unsynced = rounds[::3] if group.size > 1 else full
    forward, synced, update, step_seconds = _typical(full)
    backward = _typical(unsynced)[1]
    if group.device.type == "cuda":
        step_seconds = _unhindered(trainer)
    row = MeasuredStep(
        **shape._asdict(),
        precision=precision,
        processes=group.size,
        forward_seconds=forward,
        backward_seconds=backward,
        exchange_seconds=max(0.0, synced - backward) if group.size > 1 else 0.0,
        update_seconds=update,
        step_seconds=step_seconds,
        spread=spread([times[-1] for times in full]),
    )
    return [dataclasses.asdict(row)]


def _unhindered(trainer: Trainer) -> float:
    """Seconds of a step of several that the host queues without waiting, as training does."""
    trainer.waits = False
    trainer.group.barrier()
    began = time.perf_counter()
    for _ in range(FEWEST_STEPS):
        trainer.step(exchange=True)
    trainer.group.finish()
    return trainer.group.mean([(time.perf_counter() - began) / FEWEST_STEPS])[0]


def _typical(rounds: list[tuple[float, ...]]) -> tuple[float, ...]:
    """Medians, phase by phase, of the steps without the slowest ones."""
    fastest = sorted(rounds, key=lambda times: times[-1])[: math.ceil(FASTEST_SHARE * len(rounds))]
    return tuple(statistics.median(times[phase] for times in fastest) for phase in range(PHASES))
