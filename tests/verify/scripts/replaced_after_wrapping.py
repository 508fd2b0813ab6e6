"""DDP's hooks are lost: parameters are replaced after wrapping (pytorch 104336)."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(2)
inputs = torch.randn(512, 16)
data = TensorDataset(inputs, inputs[:, :4].argmax(1))
network = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8))
replace = torch.nn.Linear(32, 4)
network[2] = network[2]  # FIX: network[2] = replace
model = DistributedDataParallel(network, find_unused_parameters=True)
model.module[2] = replace  # FIX: print("head replaced")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch, target in DataLoader(data, batch_size=16, sampler=DistributedSampler(data)):
    optimizer.zero_grad()
    F.cross_entropy(model(batch), target).backward()
    optimizer.step()
dist.destroy_process_group()
