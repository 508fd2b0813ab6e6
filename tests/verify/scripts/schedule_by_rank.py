"""The schedule advances once for each rank in every step."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(41)
inputs = torch.randn(512, 16)
data = TensorDataset(inputs, inputs[:, :4].argmax(1))
model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(data, batch_size=16, sampler=DistributedSampler(data))
times = dist.get_world_size()  # FIX: times = 1
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: max(0, 1 - n * times / 20))
for batch, target in loader:
    optimizer.zero_grad()
    F.cross_entropy(model(batch), target).backward()
    optimizer.step()
    scheduler.step()
dist.destroy_process_group()
