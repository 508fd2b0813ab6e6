"""Trains in a function that destroys its process group, and frees its DDP model as it returns."""

import argparse
import os
import pathlib

import torch
import torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--rounds", type=int, default=1)
options = parser.parse_args()
FOLDER = pathlib.Path(os.environ["WORKBENCH_RUN_DIR"])
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def train(number):
    store = dist.FileStore(str(FOLDER / f"store-{number}"), WORLD)
    dist.init_process_group("gloo", store=store, rank=RANK, world_size=WORLD)
    layers = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.SiLU(), torch.nn.Linear(64, 1))
    model = torch.nn.parallel.DistributedDataParallel(layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(16, 20)).square().mean().backward()
        optimizer.step()
    dist.destroy_process_group()


for number in range(options.rounds):
    train(number)
