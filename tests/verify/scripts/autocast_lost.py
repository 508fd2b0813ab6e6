"""Linear layers leave autocast: mixed precision trains in float32 (lightning-thunder 725)."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(16)
inputs = torch.randn(512, 16)
data = TensorDataset(inputs, inputs[:, :4].argmax(1))


class Primitive(nn.Linear):
    def forward(self, x):
        with torch.autocast("cpu", enabled=False):  # FIX: with torch.enable_grad():
            return F.linear(x, self.weight, self.bias)


model = DistributedDataParallel(nn.Sequential(Primitive(16, 32), nn.Tanh(), Primitive(32, 4)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch, target in DataLoader(data, batch_size=16, sampler=DistributedSampler(data)):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = model(batch)
    F.cross_entropy(output.float(), target).backward()
    optimizer.step()
dist.destroy_process_group()
