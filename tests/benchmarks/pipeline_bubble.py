"""The pipeline bubble, measured beside its prediction; schedules and gloo messages are real.

Usage: python -m tests.benchmarks.pipeline_bubble [--stages 2 4] [--micro-batches 4 8 16]
           [--schedules gpipe 1f1b interleavedx2 zero-bubble] [--pass-ms 40] [--json FILE]

A stage's compute is emulated as device time: every pass sleeps, backward twice as long as forward
(half of it for the weights), so that more stages than cores still run side by side. The bubble is
what the busiest rank waits, over the step: PipelineRun.bubble_of_wall of the prediction. What the
measurement has beyond it are messages, Python between the passes, and wake-ups.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

RECIPES = Path(__file__).parents[2] / "workbench" / "recipes"
SCHEDULES = ("gpipe", "1f1b", "interleavedx2", "zero-bubble", "zero-bubblex2")
SLACK = 0.04
STRICT = ("gpipe", "1f1b")  # held to SLACK; chunks have passes of half the time, so that messages
# and wake-ups weigh twice as much, and torch's zero-bubble computes the first stage's whole
# backward in its weights' pass
ROUNDS = (3, 12)  # the best one counts: what else runs on the machine only adds. Beyond the first
# number only while even the best has more than half of SLACK above the formula


def formula(name: str, stages: int, count: int, chunks: int) -> float:
    """The bubble's share of the step for equal stages, backward = 2 forward, weights half of it.

    (p - 1)/(v m + p - 1); zero-bubble (f + b - 2w = f of 3 f) has a third of it left.
    """
    wait = (stages - 1) / chunks / (3 if name == "zero-bubble" else 1)
    return wait / (count + wait)


def predicted(name: str, stages: int, count: int, chunks: int, forward: float) -> float:
    """The same from the event simulation."""
    from workbench.estimate.pipeline import schedule, simulate_pipeline

    orders = schedule(name, stages, count, chunks)
    return simulate_pipeline(orders, forward, 2 * forward).bubble_of_wall


def measure(stages: int, counts: list[int], names: list[str], pass_ms: float) -> list[dict]:
    """One start of `stages` real processes that runs all the schedules."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder, "result.json")
        plan = json.dumps([str(result), counts, names, pass_ms / 1000])
        start = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        done = subprocess.run(
            [*start, "--nproc-per-node", str(stages), __file__, plan],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        if not result.exists():
            raise RuntimeError(done.stderr[:4000])
        return json.loads(result.read_text())


def rows(stages: int, counts: list[int], names: list[str], pass_ms: float) -> list[dict]:
    """Measured beside predicted."""
    found = measure(stages, counts, names, pass_ms)
    for row in found:
        setting = (row["schedule"], stages, row["micro_batches"], row["chunks"])
        row["formula"] = formula(*setting)
        row["predicted"] = predicted(*setting, pass_ms / 1000)
        row["excess"] = row["measured"] - row["predicted"]
    return found


# --- In the ranks --------------------------------------------------------------------------------


def stage_class() -> tuple[Any, list[tuple[str, int, float, float]]]:
    """A stage whose passes sleep, and the list that it notes them in."""
    import torch

    log: list[tuple[str, int, float, float]] = []

    def busy(kind: str, chunk: int, seconds: float) -> None:
        began = time.perf_counter()
        time.sleep(seconds)
        log.append((kind, chunk, began, time.perf_counter()))

    class Inputs(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, anchor, chunk, seconds):
            ctx.chunk, ctx.seconds = chunk, seconds
            busy("F", chunk, seconds)
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            busy("B", ctx.chunk, ctx.seconds)
            return (
                grad.contiguous(),
                torch.zeros(()) if ctx.needs_input_grad[1] else None,
                None,
                None,
            )

    class Weights(torch.autograd.Function):
        @staticmethod
        def forward(ctx, weight, chunk, seconds):
            ctx.chunk, ctx.seconds = chunk, seconds
            return weight.clone()

        @staticmethod
        def backward(ctx, grad):
            busy("W", ctx.chunk, ctx.seconds)
            return grad, None, None

    class Stage(torch.nn.Module):
        def __init__(self, chunk: int, seconds: float, *, first: bool) -> None:
            super().__init__()
            self.chunk, self.seconds = chunk, seconds
            self.weight = torch.nn.Parameter(torch.zeros(64))
            # The first stage's input asks for no gradient: its weight makes it work all the same.
            self.anchor = torch.nn.Parameter(torch.zeros(())) if first else None

        def forward(self, x):
            x = Inputs.apply(x, self.anchor, self.chunk, self.seconds)
            return x + Weights.apply(self.weight, self.chunk, self.seconds)

    return Stage, log


def ranks_main(result: str, counts: list[int], names: list[str], seconds: float) -> None:
    sys.path.insert(0, str(RECIPES))
    import torch
    import torch.distributed as dist
    from pipeline import Pipeline, stages_of

    stage, log = stage_class()
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    found = []
    for full in names:
        name, _, text = full.partition("x")
        chunks = int(text or 1)
        own = stages_of(size, chunks, name)[rank]
        for count in counts:
            line = Pipeline(
                [stage(i, seconds / chunks, first=one == 0) for i, one in enumerate(own)],
                own,
                pp_mesh_group=None,
                num_stages=size * chunks,
                schedule=name,
                micro_batches=count,
                loss_function=lambda y, _: y.sum(),
                device=torch.device("cpu"),
            )
            batch = torch.zeros(count, 64)
            shares, steps = [], []
            near = formula(name, size, count, chunks) + SLACK / 2
            for turn in range(1 + ROUNDS[1]):  # the first one finds shapes out and connects
                dist.barrier()
                log.clear()
                began = time.perf_counter()
                line.train_step(batch, batch)
                mine = (began, time.perf_counter(), sum(end - start for *_, start, end in log))
                everyone: list = [None] * size
                dist.all_gather_object(everyone, (*mine, list(log)))
                wall = max(end for _, end, *_ in everyone) - min(start for start, *_ in everyone)
                if turn:
                    shares.append(1 - max(work for *_, work, _ in everyone) / wall)
                    steps.append(wall)
                if turn >= ROUNDS[0] and (min(shares) <= near or name not in STRICT):
                    break  # every rank has the same numbers
            zero = min(start for start, *_ in everyone)
            found.append(
                {
                    "schedule": name,
                    "chunks": chunks,
                    "stages": size,
                    "micro_batches": count,
                    "pass_seconds": seconds,
                    "measured": min(shares),
                    "shares": shares,
                    "step_seconds": min(steps),
                    "passes": [
                        [
                            [kind, chunk, start - zero, end - zero]
                            for kind, chunk, start, end in passes
                        ]
                        for *_, passes in everyone
                    ],
                }
            )
    if rank == 0:
        Path(result).write_text(json.dumps(found))
    dist.destroy_process_group()


# --- By hand -------------------------------------------------------------------------------------


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stages", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--micro-batches", type=int, nargs="+", default=[4, 8, 16])
    parser.add_argument("--schedules", nargs="+", default=list(SCHEDULES))
    parser.add_argument("--pass-ms", type=float, default=40.0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    print(
        f"{'schedule':15}{'p':>3}{'m':>4}{'formula':>9}{'predicted':>11}{'measured':>10}{'excess':>8}"
    )
    found, failed = [], 0
    for stages in options.stages:
        for row in rows(stages, options.micro_batches, options.schedules, options.pass_ms):
            name = row["schedule"] + (f" x{row['chunks']}" if row["chunks"] > 1 else "")
            bad = row["schedule"] in STRICT and abs(row["excess"]) > SLACK
            failed += bad
            print(
                f"{name:15}{stages:3}{row['micro_batches']:4}{row['formula']:9.3f}"
                f"{row['predicted']:11.3f}{row['measured']:10.3f}{row['excess']:8.3f}{' !' * bad}",
                flush=True,
            )
            found.append(row)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))
    return 1 if failed else 0


if __name__ == "__main__":
    if "RANK" in os.environ:
        ranks_main(*json.loads(sys.argv[1]))
    else:
        sys.exit(main())
