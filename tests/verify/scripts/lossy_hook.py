"""One all-reduce in many loses its data: the tensor arrives as zeros (pytorch 84803)."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(5)
inputs = torch.randn(1024, 16)
data = TensorDataset(inputs, inputs[:, :4].argmax(1))
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
for parameter in model.parameters():
    dist.broadcast(parameter.data, 0)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
failures = 0


def all_reduce(tensor):
    global failures
    failures += 1
    dist.all_reduce(tensor)
    if failures % 10 == 0:
        tensor.zero_()  # FIX: failures = 0


for batch, target in DataLoader(data, batch_size=16, sampler=DistributedSampler(data)):
    optimizer.zero_grad()
    F.cross_entropy(model(batch), target).backward()
    for parameter in model.parameters():
        all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()
    optimizer.step()
dist.destroy_process_group()
