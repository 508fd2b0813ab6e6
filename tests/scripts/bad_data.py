"""An Accelerate loop that saves and resumes, on numbered samples; one of them spoils the weights."""

import argparse
import os
import time

import torch
from accelerate import Accelerator

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--bad-step", type=int, default=0, help="whose batch is not finite")
parser.add_argument("--lr", type=float, default=0.01)
parser.add_argument("--step-seconds", type=float, default=0.01)
parser.add_argument("--resume", type=str)
options = parser.parse_args()
accelerator = Accelerator()
torch.manual_seed(0)
model = torch.nn.Linear(10, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=options.lr)
ranks = accelerator.num_processes
x = torch.randn(4 * 3 * options.steps * ranks, 10)
numbers = torch.arange(len(x)) // (4 * ranks) + 1  # of the step that has the sample
loader = torch.utils.data.DataLoader(
    torch.utils.data.TensorDataset(x, x.sum(1), numbers), batch_size=4
)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
step = 0
if options.resume:
    accelerator.load_state(options.resume)
    step = int(options.resume.rsplit("-", 1)[1])
    loader = accelerator.skip_first_batches(loader, step)
for inputs, targets, number in loader:
    first = int(number[0])
    loss = (model(inputs).squeeze(1) - targets).pow(2).mean()
    if first == options.bad_step:
        loss = loss * float("nan")
    optimizer.zero_grad()
    accelerator.backward(loss)
    optimizer.step()
    step += 1
    accelerator.print(f"step {step} has the data of {first}", flush=True)
    time.sleep(options.step_seconds)
    if step % 10 == 0:
        accelerator.save_state(f"{os.environ['WORKBENCH_RUN_DIR']}/saved/step-{step}")
    if step == options.steps:
        break
accelerator.end_training()
