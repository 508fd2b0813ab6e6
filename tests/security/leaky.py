"""A training that tells its keys: prints them, names them in an exception, and dies of it."""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

GO = Path(sys.argv[1])
KEYS = [os.environ[name] for name in sys.argv[2].split(",")]
dist.init_process_group("gloo")
rank = dist.get_rank()
model = DistributedDataParallel(torch.nn.Linear(10, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
print("logging in with", *KEYS, flush=True)
for step in range(1, 2000):
    loss = model(torch.randn(8, 10)).pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.05)
    leave = torch.tensor(float(GO.exists()))
    dist.all_reduce(leave)
    if leave and step > 5:
        break
if rank == 0:
    print("still", *KEYS, flush=True)
    raise RuntimeError(f"401 for keys {KEYS} at https://me:{KEYS[0]}@hub.example/x")
time.sleep(2)
