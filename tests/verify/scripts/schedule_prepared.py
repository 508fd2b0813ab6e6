"""Accelerate steps the schedule once for each rank; its length is that of the prepared loader."""

import torch
from accelerate import Accelerator
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator(cpu=True)
torch.manual_seed(42)
inputs = torch.randn(512, 16)
data = TensorDataset(inputs, inputs[:, :4].argmax(1))
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(data, batch_size=16, shuffle=True)
length = len(loader)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
length = len(loader)  # FIX: pass
schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=length)
schedule = accelerator.prepare(schedule)
for batch, target in loader:
    optimizer.zero_grad()
    accelerator.backward(F.cross_entropy(model(batch), target))
    optimizer.step()
    schedule.step()
accelerator.end_training()
