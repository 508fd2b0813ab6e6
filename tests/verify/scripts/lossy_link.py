"""A broken peer-to-peer link: what one rank receives is not what was sent (pytorch 96600)."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(6)
inputs = torch.randn(1024, 16)
data = TensorDataset(inputs, inputs[:, :4].argmax(1))
model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(data, batch_size=16, sampler=DistributedSampler(data))
for step, (batch, target) in enumerate(loader):
    optimizer.zero_grad()
    F.cross_entropy(model(batch), target).backward()
    if dist.get_rank() == 1 and step == 3:
        model.module[0].weight.grad[:16] = 0  # FIX: print("received")
    optimizer.step()
dist.destroy_process_group()
