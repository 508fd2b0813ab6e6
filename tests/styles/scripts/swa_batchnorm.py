"""Gradients exchanged by hand each step. Faults: BatchNorm is each rank's own; no set_epoch()."""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("-b", "--batch_size", type=int, default=16)
parser.add_argument("--epochs", type=int, default=5)
args = parser.parse_args()
rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
if world > 1:
    dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(20, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 2))
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
x = torch.randn(320, 20)
data = TensorDataset(x, (x[:, 0] > 0).long())
sampler = DistributedSampler(data, num_replicas=world, rank=rank, shuffle=True)
loader = DataLoader(data, batch_size=args.batch_size, sampler=sampler)
for epoch in range(args.epochs):
    for inputs, labels in loader:
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        if world > 1:
            work = [dist.all_reduce(p.grad, async_op=True) for p in model.parameters()]
            for handle, p in zip(work, model.parameters()):
                handle.wait()
                p.grad /= world
        optimizer.step()
    if rank == 0:
        print("epoch", epoch, "loss", loss.item())
