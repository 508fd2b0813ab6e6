"""Language modelling from two endless streams mixed 3:1, split by rank and by worker."""

import itertools
import os
import random

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

RANK, WORLD = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


class Stream(IterableDataset):
    def __init__(self, seed, vocabulary, length=32):
        self.seed, self.vocabulary, self.length = seed, vocabulary, length

    def __iter__(self):
        info = get_worker_info()
        parts, part = (
            WORLD * (info.num_workers if info else 1),
            RANK * (info.num_workers if info else 1) + (info.id if info else 0),
        )
        for number in itertools.count(part, parts):
            generator = torch.Generator().manual_seed(self.seed * 1_000_003 + number)
            start = torch.randint(self.vocabulary, (), generator=generator)
            yield (start + torch.arange(self.length + 1) * (1 + number % 3)) % self.vocabulary


class Mix(IterableDataset):
    def __init__(self, streams, weights):
        self.streams, self.weights = streams, weights

    def __iter__(self):
        chooser = random.Random(13)
        open_streams = [iter(s) for s in self.streams]
        while True:
            yield next(chooser.choices(open_streams, self.weights)[0])


class LM(nn.Module):
    def __init__(self, vocabulary=97, width=64):
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.place = nn.Embedding(32, width)
        layer = nn.TransformerEncoderLayer(
            width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids):
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        hidden = self.token(ids) + self.place(torch.arange(ids.shape[1]))
        return self.head(self.blocks(hidden, mask=mask, is_causal=True))


def main(steps=int(os.environ.get("MAX_STEPS", 30)), batch=int(os.environ.get("MICRO_BATCH", 8))):
    if WORLD > 1:
        dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = LM()
    model = (
        nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
        if WORLD > 1
        else model
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95))
    warm = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: min(1.0, (n + 1) / 10))
    loader = DataLoader(
        Mix([Stream(1, 97), Stream(2, 53)], [3, 1]), batch_size=batch, num_workers=1
    )
    for step, ids in zip(range(steps), loader):
        logits = model(ids[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        warm.step()
        if step % 10 == 0 and RANK == 0:
            print(f"[{step}/{steps}] loss={loss.item():.3f} lr={warm.get_last_lr()[0]:.2e}")
    if WORLD > 1:
        dist.destroy_process_group()


main()
