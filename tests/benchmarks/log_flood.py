"""A training of about 20 ms a step that may print thousands of lines a second meanwhile."""

import json
import os
import sys
import time
from pathlib import Path

import torch
from accelerate import Accelerator

rate, seconds, result = float(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
torch.set_num_threads(1)
accelerator = Accelerator(cpu=True)
model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(8)])
model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1e-3))
data = torch.randn(256, 512)
line, times, printed = "x" * 200, [], 0.0
began = time.perf_counter()
done = torch.zeros(1)
while not done.item():
    start = time.perf_counter()
    optimizer.zero_grad()
    accelerator.backward(model(data).square().mean())
    optimizer.step()
    now = time.perf_counter()
    for _ in range(int((now - began) * rate - printed)):
        print(line)
        printed += 1
    times.append(time.perf_counter() - start)
    done.fill_(float(now - began > seconds))
    torch.distributed.all_reduce(done, torch.distributed.ReduceOp.MAX)
print("the last line")
if os.environ["RANK"] == "0":
    median = sorted(times)[len(times) // 2]
    Path(result).write_text(json.dumps({"median": median, "steps": len(times), "lines": printed}))
accelerator.end_training()
