"""Parameters are made anew when the wrapped model is converted (pytorch 104336, by conversion)."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(3)
torch.__future__.set_overwrite_module_params_on_conversion(True)
inputs = torch.randn(512, 16, dtype=torch.float64)
data = TensorDataset(inputs, inputs[:, :4].argmax(1))
network = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
network.float()  # FIX: network.double()
model = DistributedDataParallel(network)
model.double()  # FIX: print("converted first")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch, target in DataLoader(data, batch_size=16, sampler=DistributedSampler(data)):
    optimizer.zero_grad()
    F.cross_entropy(model(batch), target).backward()
    optimizer.step()
dist.destroy_process_group()
