"""A 2-rank Accelerate loop of about 20 ms a step; says when it began and how fast it went."""

import itertools
import json
import os
import sys
import time
from pathlib import Path

import torch
from accelerate import Accelerator

steps, result = int(sys.argv[1]), sys.argv[2]
accelerator = Accelerator()
torch.manual_seed(0)
model = torch.nn.Sequential(*[torch.nn.Linear(640, 640) for _ in range(4)])
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model, optimizer = accelerator.prepare(model, optimizer)
inputs = torch.randn(256, 640)
ends, spent = [], []
for _ in range(steps):
    loss = model(inputs).pow(2).mean()
    accelerator.backward(loss)
    accelerator.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    ends.append(time.time())
    spent.append(time.process_time())
if accelerator.is_main_process:
    durations = sorted(late - early for early, late in itertools.pairwise(ends[10:]))
    summary = {
        "first_step_at": ends[0],
        "first_step_cpu": spent[0],
        "median": durations[len(durations) // 2] if durations else None,
        "mean": sum(durations) / len(durations) if durations else None,
        "threads": os.environ.get("OMP_NUM_THREADS"),
    }
    Path(result).write_text(json.dumps(summary))
accelerator.end_training()
