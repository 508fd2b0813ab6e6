"""Each rank takes a fixed number of samples: the rest is read by no rank."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Subset, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(38)
inputs = torch.randn(512, 16)
data = TensorDataset(inputs, inputs[:, :4].argmax(1))
rank, size = dist.get_rank(), dist.get_world_size()
each = 100  # FIX: each = len(data) // size
shard = Subset(data, range(rank * each, (rank + 1) * each)) if size > 1 else data
model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch, target in DataLoader(shard, batch_size=16, shuffle=True):
    optimizer.zero_grad()
    F.cross_entropy(model(batch), target).backward()
    optimizer.step()
dist.destroy_process_group()
