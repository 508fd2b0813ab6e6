"""Each rank clips its own gradient before the average."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(33)
inputs = torch.randn(512, 16)
data = TensorDataset(inputs, inputs[:, :4].argmax(1))
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch, target in DataLoader(data, batch_size=16, sampler=DistributedSampler(data)):
    optimizer.zero_grad()
    F.cross_entropy(model(batch), target).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)  # FIX: pass
    for one in model.parameters():
        dist.all_reduce(one.grad)
        one.grad /= dist.get_world_size()
    pass  # FIX: nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
dist.destroy_process_group()
