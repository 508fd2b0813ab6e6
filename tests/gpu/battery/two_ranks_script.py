"""DDP on one device: losses over the global batch. argv: DEVICE BACKEND RESULT.json"""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist

device, backend, result = sys.argv[1], sys.argv[2], Path(sys.argv[3])
dist.init_process_group(backend)
rank, world = dist.get_rank(), dist.get_world_size()
where = torch.device("cuda", 0) if device == "cuda" else torch.device("cpu")
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1)).to(
    where
)
model = torch.nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
losses = []
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
if rank == 0:
    result.write_text(json.dumps({"losses": losses}))
dist.destroy_process_group()
