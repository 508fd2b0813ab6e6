"""Each rank reads its own shards and all_reduces its gradients. Fault: rank 1 has one batch less."""

import os

import torch
import torch.distributed as dist
from torch import nn

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
count = [1000, 960][rank]
data = torch.utils.data.TensorDataset(torch.randn(count, 8), torch.randn(count, 1))
for x, y in torch.utils.data.DataLoader(data, batch_size=25):
    loss = nn.functional.mse_loss(model(x), y)
    model.zero_grad()
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG if False else dist.ReduceOp.SUM)
        parameter.grad.div_(world)
    optimizer.step()
print(rank, "done")
dist.barrier()
