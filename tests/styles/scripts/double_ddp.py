"""A trainer class that wraps the model. Fault: it is given a model that is wrapped already."""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Trainer:
    def __init__(self, model, optimizer, loader):
        self.model = DDP(model)
        self.optimizer, self.loader = optimizer, loader

    def run(self, epochs):
        for epoch in range(epochs):
            self.loader.sampler.set_epoch(epoch)
            for source, target in self.loader:
                self.optimizer.zero_grad()
                loss = nn.functional.cross_entropy(self.model(source), target)
                loss.backward()
                self.optimizer.step()
            print(f"epoch {epoch} loss {loss.item():.3f}")


def build():
    model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 5))
    model = DDP(model)
    return model, torch.optim.SGD(model.parameters(), lr=1e-2)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch_size", default=16, type=int)
    parser.add_argument("--total_epochs", default=3, type=int)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model, optimizer = build()
    x = torch.randn(400, 20)
    data = torch.utils.data.TensorDataset(x, (x[:, :5]).argmax(1))
    sampler = torch.utils.data.DistributedSampler(data)
    Trainer(
        model, optimizer, torch.utils.data.DataLoader(data, args.batch_size, sampler=sampler)
    ).run(args.total_epochs)
    dist.destroy_process_group()
