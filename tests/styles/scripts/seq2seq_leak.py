"""GRU encoder-decoder with a custom autograd function. Fault: the losses are kept with their graphs."""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn


class ScaleGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.factor, None


class Seq2Seq(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(60, 256)
        self.encoder, self.decoder = (
            nn.GRU(256, 256, batch_first=True),
            nn.GRU(256, 256, batch_first=True),
        )
        self.out = nn.Linear(256, 60)

    def forward(self, source, target):
        _, state = self.encoder(self.embedding(source))
        hidden, _ = self.decoder(self.embedding(target), ScaleGradient.apply(state, 0.5))
        return self.out(hidden)


parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--steps", type=int, default=60)
args = parser.parse_args()
if "RANK" in os.environ:
    dist.init_process_group("gloo")
rank = dist.get_rank() if dist.is_initialized() else 0
torch.manual_seed(0)
net = Seq2Seq()
net = nn.parallel.DistributedDataParallel(net) if dist.is_initialized() else net
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
torch.manual_seed(rank)
history, running = [], 0.0
for step in range(args.steps):
    source = torch.randint(60, (args.batch_size, 24))
    target = source.flip(1)
    logits = net(source, target)
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    history.append((loss, logits))
    running = running + loss
print("mean loss", float(running) / len(history))
