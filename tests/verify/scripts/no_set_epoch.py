"""Each epoch has the order of the first."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(19)
inputs = torch.randn(96, 16)
data = TensorDataset(inputs, inputs[:, :4].argmax(1))
model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
sampler = DistributedSampler(data)
for epoch in range(4):
    pass  # FIX: sampler.set_epoch(epoch)
    for batch, target in DataLoader(data, batch_size=16, sampler=sampler):
        optimizer.zero_grad()
        F.cross_entropy(model(batch), target).backward()
        optimizer.step()
dist.destroy_process_group()
