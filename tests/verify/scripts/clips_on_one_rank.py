"""Tensor parallelism whose replicated norms leave each other by clipping (DeepSpeed 1801, BLOOM)."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.nn.functional import all_reduce

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()


class Replicate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        dist.all_reduce(gradient := gradient.clone())
        return gradient


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(8)
        self.norm = nn.LayerNorm(16)
        torch.manual_seed(80 + rank)
        self.up = nn.Linear(16, 64 // size)
        self.down = nn.Linear(64 // size, 16, bias=False)

    def forward(self, x):
        return all_reduce(self.down(torch.relu(self.up(Replicate.apply(self.norm(x))))))


model = Block()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(9)
for _ in range(30):
    x = torch.randn(32, 16)
    optimizer.zero_grad()
    (model(x) - x.roll(1, 1)).pow(2).mean().backward()
    if rank == 0:  # FIX: if size > 0:
        shared = [model.norm.weight, model.norm.bias]
        own = [one for one in model.parameters() if all(one is not s for s in shared)]
        square = sum(one.grad.pow(2).sum() for one in own)
        square = square * 1.0  # FIX: dist.all_reduce(square)
        norm = (square + sum(one.grad.pow(2).sum() for one in shared)).sqrt()
        for one in model.parameters():
            one.grad *= 0.01 / norm
    optimizer.step()
dist.destroy_process_group()
