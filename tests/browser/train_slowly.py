"""A small real training for the browser tests: unmodified Accelerate code, ten steps a second."""

import argparse
import time

import torch
from accelerate import Accelerator

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=3000)
steps = parser.parse_args().steps

accelerator = Accelerator()
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
model, optimizer = accelerator.prepare(model, optimizer)
print("<b>not bold</b> <img src=x onerror=\"document.title='pwned'\">", flush=True)
for step in range(steps):
    inputs = torch.randn(64, 32, device=accelerator.device)
    targets = inputs.sum(1, keepdim=True).tanh() + 0.1 * torch.randn(64, 1)
    loss = torch.nn.functional.mse_loss(model(inputs), targets)
    accelerator.backward(loss)
    accelerator.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    if step % 10 == 0:
        print(f"\x1b[32mstep {step}\x1b[0m loss {loss.item():.4f}", flush=True)
    time.sleep(0.1)
