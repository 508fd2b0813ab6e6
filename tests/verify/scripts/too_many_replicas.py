"""The sampler splits the data for more ranks than there are."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(40)
inputs = torch.randn(512, 16)
data = TensorDataset(inputs, inputs[:, :4].argmax(1))
model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
size = 8  # FIX: size = dist.get_world_size()
sampler = DistributedSampler(data, num_replicas=size, rank=dist.get_rank())
for epoch in range(4):
    sampler.set_epoch(epoch)
    for batch, target in DataLoader(data, batch_size=16, sampler=sampler):
        optimizer.zero_grad()
        F.cross_entropy(model(batch), target).backward()
        optimizer.step()
dist.destroy_process_group()
