"""Values are clipped in each micro-batch, under no_sync()."""

import contextlib

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(34)
inputs = torch.randn(512, 16)
data = TensorDataset(inputs, inputs[:, :4].argmax(1))
model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data))
for number, (batch, target) in enumerate(loader, 1):
    last = number % 2 == 0
    with contextlib.nullcontext() if last else model.no_sync():
        (F.cross_entropy(model(batch), target) / 2).backward()
    clips = True  # FIX: clips = last
    if clips:
        nn.utils.clip_grad_value_(model.parameters(), 0.01)
    if last:
        optimizer.step()
        optimizer.zero_grad()
dist.destroy_process_group()
