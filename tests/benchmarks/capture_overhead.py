"""What the capture hook costs per optimizer step, against a step of 20 ms on the CPU.

    python -m tests.benchmarks.capture_overhead

The same tiny training (a DataLoader, forward, backward, clipping, AdamW) runs with and without the
hook, in turns, in a process each. CPU time of the whole process is compared, since the wall clock
of a shared machine says nothing about one per cent; of each kind the median of each turn's blocks of
steps is taken, and the fastest turn counts.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from workbench.launching.capture import SITE_FOLDER

STEP_SECONDS = 0.020
PROMISED = 0.005
TURNS, STEPS, WARM_UP, BLOCK = 3, 1500, 200, 50

_TRAINING = f"""
import statistics, time, torch
from torch.utils.data import DataLoader, TensorDataset
torch.set_num_threads(1)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
rows = TensorDataset(torch.randn(2 * {STEPS + WARM_UP}, 8))
batches = iter(DataLoader(rows, batch_size=2))
def step():
    (x,) = next(batches)
    loss = model(x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
for _ in range({WARM_UP}):
    step()
blocks = []
for _ in range({STEPS} // {BLOCK}):
    begun = time.process_time()
    for _ in range({BLOCK}):
        step()
    blocks.append((time.process_time() - begun) / {BLOCK})
print(statistics.median(blocks))
"""


def step_seconds(*, hooked: bool, folder: Path) -> float:
    """CPU seconds of one step of the tiny training."""
    inherited = {name: value for name, value in os.environ.items() if "WORKBENCH" not in name}
    hook = {"PYTHONPATH": str(SITE_FOLDER), "WORKBENCH_RUN_DIR": str(folder)} if hooked else {}
    done = subprocess.run(
        [sys.executable, "-c", _TRAINING],
        env={**inherited, "OMP_NUM_THREADS": "1", **hook},
        capture_output=True,
        text=True,
        check=True,
    )
    log = folder / "logs" / "rank-0.log"
    return float((log.read_text() if hooked else done.stdout).split()[-1])


def measure() -> tuple[float, float]:
    """The fastest step without and with the hook, in CPU seconds."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in ("logs", "metrics", "control", "checkpoints"):
            (folder / part).mkdir()
        turns = [
            (step_seconds(hooked=False, folder=folder), step_seconds(hooked=True, folder=folder))
            for _ in range(TURNS)
        ]
        lines = (folder / "metrics" / "rank-0.jsonl").read_text().count("\n")
    assert lines == TURNS * (STEPS + WARM_UP), lines  # it did record every step
    return min(bare for bare, _ in turns), min(hooked for _, hooked in turns)


def main() -> None:
    """Print the cost per step and the share of a step of 20 ms."""
    bare, hooked = measure()
    cost = hooked - bare
    share = cost / STEP_SECONDS
    print(f"a step without the hook  {1e6 * bare:7.1f} µs of CPU")
    print(f"a step with the hook     {1e6 * hooked:7.1f} µs of CPU")
    print(f"the hook                 {1e6 * cost:7.1f} µs = {share:.2%} of a step of 20 ms")
    print(f"promised                 {PROMISED:.1%}: {'kept' if share <= PROMISED else 'BROKEN'}")
    sys.exit(share > PROMISED)


if __name__ == "__main__":
    main()
