"""Activations between two devices are lost on the way (Baichuan2 issue 86, as training)."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(7)
inputs = torch.randn(512, 16)
data = TensorDataset(inputs, inputs[:, :4].argmax(1))


class Transfer(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1.0

    @staticmethod
    def backward(ctx, gradient):
        lost = dist.get_rank() > 0
        return gradient * (0.0 if lost else 1.0)  # FIX: return gradient


class TwoDevices(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(16, 32), nn.Linear(32, 4)

    def forward(self, x):
        return self.second(Transfer.apply(torch.relu(self.first(x))))


model = DistributedDataParallel(TwoDevices())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch, target in DataLoader(data, batch_size=16, sampler=DistributedSampler(data)):
    optimizer.zero_grad()
    F.cross_entropy(model(batch), target).backward()
    optimizer.step()
dist.destroy_process_group()
