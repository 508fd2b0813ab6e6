"""Message passing over graphs of different sizes: a collate of its own, scatter by index_add."""

import argparse
import os

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Graphs(Dataset):
    def __len__(self):
        return 2048

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        n = int(torch.randint(36, 45, (1,), generator=g))
        return (
            torch.randn(n, 16, generator=g),
            torch.randint(0, n, (2, 4 * n), generator=g),
            float(i % 7),
        )


def collate(graphs):
    offset, xs, edges, owner, ys = 0, [], [], [], []
    for at, (x, e, y) in enumerate(graphs):
        xs.append(x)
        edges.append(e + offset)
        owner.append(torch.full((len(x),), at))
        ys.append(y)
        offset += len(x)
    return torch.cat(xs), torch.cat(edges, 1), torch.cat(owner), torch.tensor(ys)


class Conv(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.message = nn.Sequential(nn.Linear(2 * dim, dim), nn.SiLU(), nn.Linear(dim, dim))
        self.update = nn.GRUCell(dim, dim)

    def forward(self, x, edge):
        sent = self.message(torch.cat([x[edge[0]], x[edge[1]]], -1))
        return self.update(torch.zeros_like(x).index_add(0, edge[1], sent), x)


class Net(nn.Module):
    def __init__(self, dim=64, depth=4):
        super().__init__()
        self.encode = nn.Linear(16, dim)
        self.convs = nn.ModuleList(Conv(dim) for _ in range(depth))
        self.read = nn.Linear(dim, 1)

    def forward(self, x, edge, owner, count):
        x = self.encode(x)
        for conv in self.convs:
            x = conv(x, edge)
        pooled = torch.zeros(count, x.shape[-1]).index_add(0, owner, x)
        return self.read(pooled).squeeze(-1)


p = argparse.ArgumentParser()
p.add_argument("--bs", type=int, default=16)
p.add_argument("--lr", type=float, default=1e-3)
a = p.parse_args()
net = Net()
if int(os.environ.get("WORLD_SIZE", 1)) > 1:
    torch.distributed.init_process_group("gloo")
    net = nn.parallel.DistributedDataParallel(net, gradient_as_bucket_view=True)
opt = torch.optim.Adam(net.parameters(), lr=a.lr)
for x, edge, owner, y in DataLoader(Graphs(), batch_size=a.bs, collate_fn=collate):
    opt.zero_grad()
    loss = (net(x, edge, owner, len(y)) - y).abs().mean()
    loss.backward()
    opt.step()
