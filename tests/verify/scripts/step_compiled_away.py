"""Updates stop after a step in which gradients were None (pytorch 115607)."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(12)
inputs = torch.randn(512, 16)
data = TensorDataset(inputs, inputs[:, :4].argmax(1))


class CompiledSGD(torch.optim.SGD):
    """As it was traced in a step without gradients: it runs, and updates nothing."""

    def step(self, closure=None):
        if self.param_groups[0].setdefault("calls", 0) >= 3:
            return None  # FIX: return super().step(closure)
        self.param_groups[0]["calls"] += 1
        return super().step(closure)


model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)))
optimizer = CompiledSGD(model.parameters(), lr=0.1)
for batch, target in DataLoader(data, batch_size=16, sampler=DistributedSampler(data)):
    optimizer.zero_grad()
    F.cross_entropy(model(batch), target).backward()
    optimizer.step()
dist.destroy_process_group()
