"""Gradient accumulation whose loss is not divided."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(25)
inputs = torch.randn(512, 16)
data = TensorDataset(inputs, inputs[:, :4].argmax(1))
model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data))
for step, (batch, target) in enumerate(loader):
    loss = F.cross_entropy(model(batch), target)
    loss.backward()  # FIX: (loss / 4).backward()
    if step % 4 == 3:
        optimizer.step()
        optimizer.zero_grad()
dist.destroy_process_group()
