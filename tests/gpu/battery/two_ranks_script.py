"""DDP on one device: losses over the global batch. argv: DEVICE BACKEND RESULT.json"""

import gc
import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist


def train(device: str) -> list[float]:
    """Losses of 20 steps, each over the batches of all ranks."""
    rank, world = dist.get_rank(), dist.get_world_size()
    where = torch.device("cuda", 0) if device == "cuda" else torch.device("cpu")
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
    model = torch.nn.parallel.DistributedDataParallel(net.to(where))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses: list[float] = []
    for step in range(20):
        draw = torch.Generator().manual_seed(step)
        batch = torch.randn(16, 32, generator=draw)[rank::world].to(where)
        loss = (model(batch) - batch.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        losses.append(total.item() / world)
    return losses


device, backend, result = sys.argv[1], sys.argv[2], Path(sys.argv[3])
dist.init_process_group(backend)
losses = train(device)
if dist.get_rank() == 0:
    result.write_text(json.dumps({"losses": losses}))
# DDP would keep the group, whose threads then still hold tensors when the interpreter ends: with
# gloo that aborts one run in six ("terminate called without an active exception").
gc.collect()
dist.destroy_process_group()
