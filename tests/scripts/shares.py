"""Print which part of a small model this rank holds, and as what."""

import gc

import torch
from accelerate import Accelerator
from torch import nn

accelerator = Accelerator()
model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False))
whole = sum(parameter.numel() for parameter in model.parameters())
model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
held, kind = 0, ""
for parameter in model.parameters():
    local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
    held, kind = held + local.numel(), type(parameter.data).__name__
loss = model(torch.ones(4, 8)).sum()
accelerator.backward(loss)
optimizer.step()
print(
    f"share {held / whole:.2f} {kind.replace('Tensor', 'Parameter') if kind == 'Tensor' else kind}"
)
# A model must not outlive its process group: see recipes/ending.py.
del model, optimizer, loss, parameter, local
accelerator.free_memory()
gc.collect()
accelerator.wait_for_everyone()
accelerator.end_training()
