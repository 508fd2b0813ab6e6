"""Every micro-batch runs under no_sync(), the last one too."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(27)
inputs = torch.randn(512, 16)
data = TensorDataset(inputs, inputs[:, :4].argmax(1))
model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data))
for step, (batch, target) in enumerate(loader):
    exchange = False  # FIX: exchange = step % 2 == 1
    model.require_backward_grad_sync = exchange
    (F.cross_entropy(model(batch), target) / 2).backward()
    if step % 2 == 1:
        optimizer.step()
        optimizer.zero_grad()
dist.destroy_process_group()
