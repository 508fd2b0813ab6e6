"""Tagger with packed sequences; the loss is the sum over all tokens of all ranks, divided once."""

import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence


@dataclass
class Config:
    batch_size: int = 16
    hidden: int = 48
    max_steps: int = 40
    lr: float = 5e-3

    @classmethod
    def from_env(cls):
        return cls(
            **{
                k: cls.__annotations__[k](os.environ[k.upper()])
                for k in cls.__annotations__
                if k.upper() in os.environ
            }
        )


class Tagger(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.embedding = nn.Embedding(200, hidden, padding_idx=0)
        self.lstm = nn.LSTM(hidden, hidden, batch_first=True, bidirectional=True)
        self.out = nn.Linear(2 * hidden, 5)

    def forward(self, tokens, lengths):
        packed = pack_padded_sequence(
            self.embedding(tokens), lengths, batch_first=True, enforce_sorted=False
        )
        hidden, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
        return self.out(hidden)


def collate(items):
    lengths = torch.tensor([len(x) for x, _ in items])
    xs = pad_sequence([x for x, _ in items], batch_first=True)
    ys = pad_sequence([y for _, y in items], batch_first=True, padding_value=-100)
    return xs, ys, lengths


cfg = Config.from_env()
world, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
if world > 1:
    dist.init_process_group("gloo")
torch.manual_seed(2)
sentences = [torch.randint(1, 200, (int(torch.randint(4, 40, ())),)) for _ in range(640)]
data = [(s, s % 5) for s in sentences]
model = Tagger(cfg.hidden)
if world > 1:
    model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.Adam(model.parameters(), lr=cfg.lr)
sampler = torch.utils.data.DistributedSampler(data, world, rank, shuffle=True)
loader = torch.utils.data.DataLoader(data, cfg.batch_size, sampler=sampler, collate_fn=collate)
step = epoch = 0
while step < cfg.max_steps:
    sampler.set_epoch(epoch)
    epoch += 1
    for xs, ys, lengths in loader:
        logits = model(xs, lengths)
        total = nn.functional.cross_entropy(
            logits.flatten(0, 1), ys.flatten(), ignore_index=-100, reduction="sum"
        )
        count = lengths.sum().float()
        if world > 1:
            dist.all_reduce(count)
        loss = total * world / count
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step == cfg.max_steps:
            break
