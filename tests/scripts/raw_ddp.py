"""Raw PyTorch DDP, no Accelerate: the plain loop of the tutorials, with faults on request."""

import argparse
import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=20)
parser.add_argument("--step-seconds", type=float, default=0.0)
parser.add_argument("--raise-at", type=int, default=0, help="rank 1 raises at this step")
parser.add_argument("--exit-at", type=int, default=0, help="rank 1 calls sys.exit(3) at this step")
parser.add_argument("--nan-at", type=int, default=0)
parser.add_argument("--lag", type=float, default=0.0, help="seconds that rank 1 is slower")
parser.add_argument("--ignore-sigterm", action="store_true")
options = parser.parse_args()
if options.ignore_sigterm:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
dist.init_process_group("gloo")
rank = int(os.environ["RANK"])
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(10, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(1, options.steps + 1):
    if rank == 1 and step == options.raise_at:
        raise ValueError(f"boom at step {step}")
    if rank == 1 and step == options.exit_at:
        sys.exit(3)
    time.sleep(options.step_seconds + options.lag * (rank == 1))
    x = torch.randn(8, 10)
    loss = (model(x) - x.sum(1, keepdim=True)).pow(2).mean()
    if step == options.nan_at:
        loss = loss * float("nan")
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"rank {rank} step {step} loss {loss.item():.4f}")
dist.barrier()  # no one leaves while another still needs it
dist.destroy_process_group()
