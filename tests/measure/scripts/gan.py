"""Two networks with an optimizer each, which take turns."""

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

G = nn.Sequential(nn.Linear(16, 128), nn.ReLU(), nn.Linear(128, 64))
D = nn.Sequential(nn.Linear(64, 128), nn.LeakyReLU(), nn.Linear(128, 1))
og, od = torch.optim.Adam(G.parameters(), 1e-3), torch.optim.Adam(D.parameters(), 1e-3)
f = nn.BCEWithLogitsLoss()
for (x,) in DataLoader(TensorDataset(torch.randn(2048, 64)), batch_size=32):
    od.zero_grad()
    fake = G(torch.randn(len(x), 16))
    (f(D(x), torch.ones(len(x), 1)) + f(D(fake.detach()), torch.zeros(len(x), 1))).backward()
    od.step()
    og.zero_grad()
    f(D(fake), torch.ones(len(x), 1)).backward()
    og.step()
