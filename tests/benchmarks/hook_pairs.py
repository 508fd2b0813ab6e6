"""Throughput with the capture hook ÷ without, at steps of 20 ms: pairs of blocks within one run.

    python -m tests.benchmarks.hook_pairs [--pairs 40] [--clock wall]

Two processes make the same real steps (a DataLoader, forward, backward, clipping, AdamW), one under
the hook. They take turns, block by block, so that whatever else the machine does meets both; which
one begins changes from pair to pair. After eight pairs two new processes take over: where its
memory lies makes a process some per cent faster or slower for its whole life. Of each pair the ratio of the times is taken, and of the
ratios the mean's 95 % interval (Student), without the tenth at either end: a block in which
another process had the core is no measurement. By default the CPU time counts, all threads of the
process; by wall time the rest of the machine is measured along.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.benchmarks.capture_overhead import STEP_SECONDS
from workbench.launching.capture import SITE_FOLDER

TARGET = 0.995
PAIRS, BLOCK = 48, 10
_OF_A_PROCESS = 8  # pairs
_TRIMMED = 0.1

_TRAINING = """
import json, os, sys, time, torch
from torch.utils.data import DataLoader, TensorDataset
torch.set_num_threads(1)
answers, layers, block = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
torch.manual_seed(0)
model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(layers)])
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
loader = DataLoader(TensorDataset(torch.randn(16 * 500, 256)), batch_size=16)
def batches():
    while True:
        yield from loader
stream = batches()
def step():
    (x,) = next(stream)
    loss = model(x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
for _ in range(10):
    step()
os.write(answers, b"{}\\n")
for _ in sys.stdin:
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(block):
        step()
    measured = {"cpu": time.process_time() - cpu, "wall": time.perf_counter() - wall}
    os.write(answers, json.dumps(measured).encode() + b"\\n")
"""


class Training:
    """A process that makes a block of steps whenever it is told to."""

    def __init__(self, folder: Path, layers: int, block: int, *, hooked: bool) -> None:
        for part in ("logs", "metrics", "control", "checkpoints"):
            (folder / part).mkdir(parents=True, exist_ok=True)
        bare = {name: value for name, value in os.environ.items() if "WORKBENCH" not in name}
        hook = {"PYTHONPATH": str(SITE_FOLDER), "WORKBENCH_RUN_DIR": str(folder)} if hooked else {}
        reading, writing = os.pipe()  # the hook sends stdout to the rank's log
        words = [str(writing), str(layers), str(block)]
        self.process = subprocess.Popen(
            [sys.executable, "-c", _TRAINING, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env={**bare, "OMP_NUM_THREADS": "1", **hook},
            pass_fds=(writing,),
        )
        os.close(writing)
        self._answers = os.fdopen(reading, "rb")
        self._answers.readline()

    def block(self) -> dict[str, float]:
        """Seconds of one block, by CPU and by wall clock."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"go\n")
        self.process.stdin.flush()
        return json.loads(self._answers.readline())

    def end(self) -> None:
        self.process.kill()
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()
        self._answers.close()


def layers_of_a_step(folder: Path, seconds: float) -> int:
    """So many layers that a step takes about `seconds` of CPU on this machine."""
    few, many = 4, 24
    took: list[float] = []
    for layers in (few, many):
        training = Training(folder, layers, BLOCK, hooked=False)
        took.append(min(training.block()["cpu"] for _ in range(3)) / BLOCK)
        training.end()
    each = (took[1] - took[0]) / (many - few)
    return max(1, round(few + (seconds - took[0]) / each))


def measure(pairs: int = PAIRS, seconds: float = STEP_SECONDS) -> list[dict[str, float]]:
    """Of each pair: time without ÷ with, which is throughput with ÷ without, by either clock.

    With it ``"step"``, the CPU seconds of a step without.
    """
    with tempfile.TemporaryDirectory() as name:
        layers = layers_of_a_step(Path(name) / "sizes", seconds)
        found: list[dict[str, float]] = []
        while len(found) < pairs:
            some = min(_OF_A_PROCESS, pairs - len(found))
            found += _pairs(Path(name) / f"{len(found)}", layers, some)
        return found


def _pairs(folder: Path, layers: int, number: int) -> list[dict[str, float]]:
    """Those of two new processes."""
    kinds = [
        Training(folder / f"{hooked}", layers, BLOCK, hooked=hooked) for hooked in (False, True)
    ]
    try:
        for one in kinds:
            one.block()
        return [_pair(kinds, at) for at in range(number)]
    finally:
        for one in kinds:
            one.end()


def _pair(kinds: list[Training], number: int) -> dict[str, float]:
    order = (0, 1) if number % 2 else (1, 0)
    took = {which: kinds[which].block() for which in order}
    ratios = {clock: took[0][clock] / took[1][clock] for clock in ("cpu", "wall")}
    return {**ratios, "step": took[0]["cpu"] / BLOCK}


def interval(ratios: list[float]) -> tuple[float, float, float]:
    """Mean and 95 % interval of what is left without the extremes (Tukey and McLaughlin 1963)."""
    ordered = sorted(ratios)
    cut = int(_TRIMMED * len(ordered))
    kept = ordered[cut : len(ordered) - cut]
    clipped = [min(max(one, kept[0]), kept[-1]) for one in ordered]
    mean = statistics.fmean(kept)
    share = len(kept) / len(ordered)
    error = statistics.stdev(clipped) / (share * math.sqrt(len(ordered)))
    half = 2.04 * error  # Student's t at 30 and more degrees of freedom is 2.04 at most
    return mean, mean - half, mean + half


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=PAIRS)
    parser.add_argument("--clock", choices=("cpu", "wall"), default="cpu")
    options = parser.parse_args()
    found = measure(options.pairs)
    step = statistics.median(one["step"] for one in found)
    print(f"{len(found)} pairs of {BLOCK} steps of {1e3 * step:.1f} ms (CPU, without the hook)")
    for clock in ("cpu", "wall"):
        mean, low, high = interval([one[clock] for one in found])
        print(f"by {clock:4} time: {mean:.4f}, 95 % interval {low:.4f} to {high:.4f}")
    _, _, high = interval([one[options.clock] for one in found])
    print(f"promised: the interval reaches {TARGET}: {'kept' if high >= TARGET else 'BROKEN'}")
    sys.exit(high < TARGET)


if __name__ == "__main__":
    main()
