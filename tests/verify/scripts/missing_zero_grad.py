"""MNIST-like classifier whose loss gets worse (stackoverflow 60335387)."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(1)
inputs = torch.randn(512, 16)
data = TensorDataset(inputs, inputs[:, :4].argmax(1))
model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
for batch, target in DataLoader(data, batch_size=16, sampler=DistributedSampler(data)):
    pass  # FIX: optimizer.zero_grad()
    F.cross_entropy(model(batch), target).backward()
    optimizer.step()
dist.destroy_process_group()
