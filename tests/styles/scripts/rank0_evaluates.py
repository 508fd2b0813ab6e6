"""Transformer with argparse in main(). Fault: in step 20 rank 0 alone evaluates, with a collective."""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn


def evaluate(model, x, y):
    model.eval()
    with torch.no_grad():
        score = (model(x).argmax(-1) == y).float().mean()
    dist.all_reduce(score)
    model.train()
    return score / dist.get_world_size()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bs", type=int, default=8)
    parser.add_argument("--eval-interval", type=int, default=20)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.1, batch_first=True)
    model = nn.Sequential(
        nn.Embedding(50, 32),
        nn.TransformerEncoder(layer, 1, enable_nested_tensor=False),
        nn.Linear(32, 50),
    )
    model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(1, 61):
        x = torch.randint(
            50, (args.bs, 16), generator=torch.Generator().manual_seed(step * 2 + rank)
        )
        loss = nn.functional.cross_entropy(model(x).flatten(0, 1), x.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % args.eval_interval == 0:
            print("accuracy", evaluate(model.module, x, x).item())


main()
