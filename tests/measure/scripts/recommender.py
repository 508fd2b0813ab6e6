"""Two towers of embeddings with an MLP on top, Adagrad, an endless stream of clicks."""

import os

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, IterableDataset


class Clicks(IterableDataset):
    def __iter__(self):
        g = torch.Generator().manual_seed(0)
        while True:
            yield (
                torch.randint(0, 20000, (1,), generator=g)[0],
                torch.randint(0, 5000, (10,), generator=g),
                torch.rand(13, generator=g),
                torch.rand((), generator=g).round(),
            )


class DLRM(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.user, self.item = nn.Embedding(20000, dim), nn.EmbeddingBag(5000, dim, mode="sum")
        self.bottom = nn.Sequential(nn.Linear(13, 128), nn.ReLU(), nn.Linear(128, dim), nn.ReLU())
        self.top = nn.Sequential(
            nn.Linear(3 * dim, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1)
        )

    def forward(self, user, items, dense):
        return self.top(
            torch.cat([self.user(user), self.item(items), self.bottom(dense)], 1)
        ).squeeze(1)


def train(batch_size=256):
    model = DLRM()
    if os.environ.get("WORLD_SIZE", "1") != "1":
        torch.distributed.init_process_group(backend="gloo")
        model = nn.parallel.DistributedDataParallel(model)
    opt = torch.optim.Adagrad(model.parameters(), lr=0.02)
    for user, items, dense, y in DataLoader(Clicks(), batch_size=batch_size):
        opt.zero_grad(set_to_none=False)
        nn.functional.binary_cross_entropy_with_logits(model(user, items, dense), y).backward()
        opt.step()


train(int(os.environ.get("BATCH", 256)))
