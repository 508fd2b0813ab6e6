"""Saves every few steps, loads its own latest checkpoint at its start, and dies at given steps.

Prints the number of each step as its own loop has it.
"""

import argparse
import os
import signal
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--optimizer", default="adamw")
parser.add_argument("--victim", default="rank", choices=["rank", "launcher", "all"])
parser.add_argument("--dies-at", type=int, nargs="*", default=[])
parser.add_argument("--from-the-beginning", action="store_true", help="load nothing")
parser.add_argument("--out", type=Path, default=Path("out"))
options = parser.parse_args()
STEPS, SAVE_EVERY, RANK = 20, 6, int(os.environ["RANK"])

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(8, 8))
if options.optimizer == "sgd":
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
else:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
last, begin, pause = options.out / "last.pt", 0, 0.12
if last.exists() and not options.from_the_beginning:
    state = torch.load(last)
    begin = state["step"]
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
for number in range(begin + 1, STEPS + 1):
    model(torch.randn(4, 8)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    print("step", number, flush=True)
    if number % SAVE_EVERY == 0 and RANK == 0:
        options.out.mkdir(exist_ok=True)
        new = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": number}
        torch.save(new, options.out / "new.pt")
        (options.out / "new.pt").replace(last)
    time.sleep(pause)  # a line is written 250 ms after the one before, at the latest
    dist.barrier()
    died = Path(f"{options.out}-died-{RANK}-{number}")
    if number in options.dies_at and not died.exists():
        died.touch()
        if options.victim == "launcher" and RANK == 0:
            os.kill(os.getppid(), signal.SIGKILL)
            pause = 1.5  # however late a busy machine notices, the steps after it stay few
        if options.victim == "all" or (options.victim == "rank" and RANK == 1):
            os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()
