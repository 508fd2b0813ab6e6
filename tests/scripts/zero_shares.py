"""Print how much of a small model's weights this rank keeps under DeepSpeed's ZeRO-3."""

import json
import sys

import torch
from accelerate import Accelerator
from torch import nn

accelerator = Accelerator()
config = accelerator.deepspeed_plugin.deepspeed_config
config["train_micro_batch_size_per_gpu"] = 4
model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False))
whole = sum(parameter.numel() for parameter in model.parameters())
model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
accelerator.backward(model(torch.ones(4, 8)).sum())
held = sum(parameter.ds_tensor.numel() for parameter in model.parameters())
said = {
    "engine": type(model).__name__,
    "share": held / whole,
    "world": accelerator.num_processes,
    "mlflow": "mlflow" in sys.modules,
}
print(json.dumps(said), flush=True)
accelerator.end_training()
