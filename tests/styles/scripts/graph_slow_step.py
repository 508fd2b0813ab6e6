"""A graph network without PyG, arguments by typer. Fault: rank 2's optimizer takes 60 ms longer."""

import os
import time

import torch
import torch.distributed as dist
import typer
from torch import nn


class GCN(nn.Module):
    def __init__(self, features=16, hidden=32):
        super().__init__()
        self.one, self.two, self.out = (
            nn.Linear(features, hidden),
            nn.Linear(hidden, hidden),
            nn.Linear(hidden, 2),
        )

    def forward(self, x, adjacency):
        x = torch.relu(torch.bmm(adjacency, self.one(x)))
        x = torch.relu(torch.bmm(adjacency, self.two(x)))
        return self.out(x.mean(1))


class Offloaded(torch.optim.Adam):
    """Pretends that one host writes its states to a slow disk."""

    def step(self, closure=None):
        result = super().step(closure)
        if int(os.environ.get("RANK", 0)) == 2:
            time.sleep(0.06)
        return result


def main(graphs_per_batch: int = 16, steps: int = 40, nodes: int = 24):
    world, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
    if world > 1:
        dist.init_process_group("gloo")
    torch.manual_seed(4)
    model = GCN()
    model = nn.parallel.DistributedDataParallel(model) if world > 1 else model
    optimizer = Offloaded(model.parameters(), lr=5e-3)
    generator = torch.Generator().manual_seed(rank)
    for step in range(steps):
        adjacency = (torch.rand(graphs_per_batch, nodes, nodes, generator=generator) < 0.2).float()
        adjacency = adjacency / adjacency.sum(-1, keepdim=True).clamp(min=1)
        x = torch.randn(graphs_per_batch, nodes, 16, generator=generator)
        label = (x[:, :, 0].mean(1) > 0).long()
        loss = nn.functional.cross_entropy(model(x, adjacency), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 10 == 0:
            typer.echo(f"step {step} loss {loss.item():.4f}")
    if world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    typer.run(main)
