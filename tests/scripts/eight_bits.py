"""A user's script in fp8: Accelerate swaps its linear layers for torchao's. Prints the last loss."""

import torch
from accelerate import Accelerator

accelerator = Accelerator(mixed_precision="fp8")
torch.manual_seed(0)
model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4)))
model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-2))
inputs = torch.randn(32, 64, device=accelerator.device)
for _ in range(20):
    loss = (model(inputs) - inputs).float().square().mean()
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
swapped = sum(type(part).__name__.endswith("Float8Linear") for part in model.modules())
accelerator.print(f"{accelerator.fp8_backend.value} swapped {swapped} loss {loss.item():.4f}")
