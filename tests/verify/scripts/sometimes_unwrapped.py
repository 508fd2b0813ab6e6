"""A helper gives the wrapped model in some steps and the plain one in others (jxmnop, on X)."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(4)
inputs = torch.randn(512, 16)
data = TensorDataset(inputs, inputs[:, :4].argmax(1))
model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)


def model_ddp_or_not(step):
    return model.module if step % 4 == 3 else model  # FIX: return model


loader = DataLoader(data, batch_size=16, sampler=DistributedSampler(data))
for step, (batch, target) in enumerate(loader):
    optimizer.zero_grad()
    F.cross_entropy(model_ddp_or_not(step)(batch), target).backward()
    optimizer.step()
dist.destroy_process_group()
