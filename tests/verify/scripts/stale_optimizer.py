"""The optimizer holds parameters from before the model was prepared (accelerate 2665)."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(17)
inputs = torch.randn(512, 16)
data = TensorDataset(inputs, inputs[:, :4].argmax(1))
network = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
flat = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
flat.load_state_dict(network.state_dict())
model = DistributedDataParallel(flat)
optimizer = optimizer  # FIX: optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for batch, target in DataLoader(data, batch_size=16, sampler=DistributedSampler(data)):
    optimizer.zero_grad()
    F.cross_entropy(model(batch), target).backward()
    optimizer.step()
dist.destroy_process_group()
