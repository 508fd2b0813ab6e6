"""Raw DDP that ends badly, or not at all, or whose clock jumps; --trouble says how."""

import argparse
import atexit
import ctypes
import os
import pathlib
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--trouble", default="none")
parser.add_argument("--steps", type=int, default=30)
options = parser.parse_args()
dist.init_process_group("gloo")
rank = dist.get_rank()
libc = ctypes.CDLL(None)
real_time = time.time
if options.trouble == "lingers" and rank == 0:  # after Python itself has ended
    libc.__cxa_atexit(libc.pause, None, None)
if options.trouble == "tidies-up" and rank == 0:  # the script's own end takes for ever
    atexit.register(time.sleep, 100_000)
if options.trouble == "grows" and rank == 1:
    pathlib.Path(os.environ["MEMORY_GROUP"], "cgroup.procs").write_text(str(os.getpid()))
model = DistributedDataParallel(torch.nn.Linear(10, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
kept = []
for step in range(1, options.steps + 1):
    if rank == 1 and step == 15:
        if options.trouble == "cuda-oom":
            raise torch.OutOfMemoryError(
                "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of "
                "79.15 GiB of which 1.20 GiB is free. Of the allocated memory 74.00 GiB is "
                "allocated by PyTorch, and 2.10 GiB is reserved by PyTorch but unallocated."
            )
        if options.trouble == "allocation":
            torch.empty(1 << 50, dtype=torch.uint8)
    if step == 12 and options.trouble == "clock":
        jump = -3600 if rank == 0 else 86_400
        time.time = lambda jump=jump: real_time() + jump
    # Not before the supervisor, which looks once a second, has seen the group that the rank is in.
    if options.trouble == "grows" and rank == 1 and step > 150:
        kept.append(torch.ones(8 << 20))
    time.sleep(0.02)
    x = torch.randn(8, 10)
    optimizer.zero_grad()
    (model(x) - x.sum(1, keepdim=True)).pow(2).mean().backward()
    optimizer.step()
    print(f"rank {rank} step {step}")
dist.barrier()
del model, optimizer
dist.destroy_process_group()
