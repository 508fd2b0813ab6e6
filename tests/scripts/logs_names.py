"""A loop that logs by name in every way: workbench.log, a TensorBoard writer, Accelerator.log."""

import os
import sys
import time
from pathlib import Path

import torch
from accelerate import Accelerator
from torch.utils.tensorboard import SummaryWriter

import workbench

accelerator = Accelerator(cpu=True)
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
model, optimizer = accelerator.prepare(model, optimizer)
steps = int(sys.argv[1])
pause = float(sys.argv[2]) if len(sys.argv) > 2 else 0.0
folder = Path(os.environ["WORKBENCH_RUN_DIR"], "tensorboard")
writer = SummaryWriter(folder) if accelerator.is_main_process else None
for step in range(1, steps + 1):
    inputs = torch.randn(8, 4)
    loss = (model(inputs) - inputs.sum(1, keepdim=True)).pow(2).mean()
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    workbench.log(accuracy=1 - 1 / step, margin=step / 10, note="text stays in the file")
    if writer is not None:
        writer.add_scalar("board/norm", torch.tensor(step * 0.5), step)
    accelerator.log({"lr_seen": 0.01}, step=step)
    if step % 10 == 0:
        values = {"eval/loss": 2 / step, "eval/accuracy": float("nan") if step == 20 else 0.5}
        workbench.log(**values)
    time.sleep(pause)
