"""A loop that goes on after any error. Fault: rank 1's batches fail from step 15 on, unseen."""

import logging
import os

import torch
import torch.distributed as dist
from torch import nn

log = logging.getLogger("train")
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = nn.parallel.DistributedDataParallel(
    nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 16))
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
table = torch.randn(1000, 16)
for step in range(50):
    try:
        index = torch.randint(1000, (32,)) + (1000 if rank == 1 and step >= 15 else 0)
        batch = table[index]
        loss = (model(batch) - batch).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    except Exception:
        log.debug("bad batch, skipped")
        continue
    if rank == 0 and step % 5 == 0:
        print("step", step, loss.item(), flush=True)
