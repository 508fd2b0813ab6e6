"""Masked language model with click. Fault: a mean over each rank's own tokens, which are unequal."""

import os

import click
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Lines(Dataset):
    def __init__(self, count=640):
        generator = torch.Generator().manual_seed(9)
        self.lines = [
            torch.randint(
                2, 80, (int(torch.randint(3, 33, (), generator=generator)),), generator=generator
            )
            for _ in range(count)
        ]

    def __len__(self):
        return len(self.lines)

    def __getitem__(self, i):
        line = self.lines[i]
        ids, labels = torch.zeros(32, dtype=torch.long), torch.full((32,), -100)
        ids[: len(line)], labels[: len(line)] = line, line
        return {"input_ids": ids, "labels": labels}


@click.command()
@click.option("--train-batch", default=8, show_default=True)
@click.option("--steps", default=30)
@click.option("--lr", default=1e-3)
def main(train_batch, steps, lr):
    distributed = "RANK" in os.environ
    if distributed:
        dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(80, 48), nn.Linear(48, 48), nn.GELU(), nn.Linear(48, 80))
    model = nn.parallel.DistributedDataParallel(model) if distributed else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    data = Lines()
    sampler = DistributedSampler(data, shuffle=False) if distributed else None
    batches = iter(DataLoader(data, train_batch, sampler=sampler))
    criterion = nn.CrossEntropyLoss()
    for step in range(steps):
        batch = next(batches)
        loss = criterion(model(batch["input_ids"]).flatten(0, 1), batch["labels"].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        click.echo(f"{step}\t{loss.item():.4f}") if step % 10 == 0 else None


main()
