"""Two networks in turn, three backward passes for each batch; with a loader, or with data drawn."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader

torch.manual_seed(0)
make, judge = nn.Linear(4, 8), nn.Linear(8, 1)
of_make = torch.optim.Adam(make.parameters(), lr=1e-3)
of_judge = torch.optim.Adam(judge.parameters(), lr=1e-3)
loss = nn.BCEWithLogitsLoss()
data = torch.randn(64, 8)
drawn = (torch.randn(8, 8) for _ in range(8))
for real in drawn if "--drawn" in sys.argv else DataLoader(data, batch_size=8):
    of_judge.zero_grad()
    loss(judge(real)[:, 0], torch.ones(8)).backward()
    fake = make(torch.randn(8, 4))
    loss(judge(fake.detach())[:, 0], torch.zeros(8)).backward()
    of_judge.step()
    of_make.zero_grad()
    loss(judge(fake)[:, 0], torch.ones(8)).backward()
    of_make.step()
