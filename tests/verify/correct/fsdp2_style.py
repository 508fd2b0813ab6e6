"""In the style of the FSDP2 tutorial: fully_shard for each layer, clipping of sharded gradients."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F

dist.init_process_group("gloo")
torch.manual_seed(10)
layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
model = nn.Sequential(nn.Embedding(64, 32), nn.TransformerEncoder(layer, 2), nn.Linear(32, 64))
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
for block in model[1].layers:
    fully_shard(block, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
torch.manual_seed(100 + dist.get_rank())
for _ in range(20):
    words = torch.randint(0, 64, (8, 17))
    output = model(words[:, :-1])
    F.cross_entropy(output.flatten(0, 1), words[:, 1:].flatten()).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
