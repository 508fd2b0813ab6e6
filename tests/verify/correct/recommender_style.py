"""In the style of recommender tutorials: two towers, negative samples, gradients for rows alone."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Clicks(Dataset):
    def __init__(self):
        self.users, self.items = torch.randint(0, 300, (1024,)), torch.randint(0, 500, (1024,))

    def __len__(self):
        return len(self.users)

    def __getitem__(self, index):
        return self.users[index], self.items[index], torch.randint(0, 500, (4,))


class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.user, self.item = nn.Embedding(300, 16), nn.Embedding(500, 16)
        self.bias = nn.Embedding(500, 1)
        nn.init.zeros_(self.bias.weight)

    def forward(self, users, items):
        return (self.user(users)[:, None] * self.item(items)).sum(-1) + self.bias(items)[..., 0]


dist.init_process_group("gloo")
torch.manual_seed(6)
data = Clicks()
torch.manual_seed(60 + dist.get_rank())
model = DistributedDataParallel(Towers())
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
sampler = DistributedSampler(data)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for users, items, negatives in DataLoader(data, batch_size=64, sampler=sampler):
        scores = model(users, torch.cat([items[:, None], negatives], 1))
        target = torch.zeros_like(scores)
        target[:, 0] = 1
        optimizer.zero_grad()
        F.binary_cross_entropy_with_logits(scores, target).backward()
        optimizer.step()
dist.destroy_process_group()
