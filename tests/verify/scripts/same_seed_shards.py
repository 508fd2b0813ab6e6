"""Tensor-parallel shards that are drawn with one seed (Smol Training Playbook)."""

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
        torch.manual_seed(20)
        self.norm = nn.LayerNorm(16)
        torch.manual_seed(21)  # FIX: torch.manual_seed(21 + rank)
        self.up = nn.Linear(16, 64 // size)
        self.down = nn.Linear(64 // size, 16, bias=False)

    def forward(self, x):
        return all_reduce(self.down(torch.relu(self.up(Replicate.apply(self.norm(x))))))


model = Block()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(22)
for _ in range(30):
    x = torch.randn(32, 16)
    optimizer.zero_grad()
    (model(x) - x.roll(1, 1)).pow(2).mean().backward()
    optimizer.step()
dist.destroy_process_group()
