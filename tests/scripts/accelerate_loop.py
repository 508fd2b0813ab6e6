"""A plain Accelerate loop with accumulation, clipping and a scheduler."""

import argparse
import time

import torch
from accelerate import Accelerator

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=12)
parser.add_argument("--accumulate", type=int, default=2)
parser.add_argument("--step-seconds", type=float, default=0.0)
options = parser.parse_args()
accelerator = Accelerator(gradient_accumulation_steps=options.accumulate)
torch.manual_seed(0)
model = torch.nn.Linear(10, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
x = torch.randn(4 * options.steps * options.accumulate * accelerator.num_processes, 10)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, x.sum(1)), batch_size=4)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for inputs, targets in loader:
    with accelerator.accumulate(model):
        loss = (model(inputs).squeeze(1) - targets).pow(2).mean()
        accelerator.backward(loss)
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    time.sleep(options.step_seconds)
accelerator.print("done on", accelerator.num_processes, "processes")
accelerator.end_training()
