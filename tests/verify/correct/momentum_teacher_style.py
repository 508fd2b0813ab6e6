"""In the style of BYOL and MoCo: a target network that follows by a moving average."""

import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

dist.init_process_group("gloo")
torch.manual_seed(9)
data = torch.randn(256, 16)


class BYOL(nn.Module):
    def __init__(self):
        super().__init__()
        self.online = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8))
        self.target = copy.deepcopy(self.online)
        for one in self.target.parameters():
            one.requires_grad = False
        self.predictor = nn.Linear(8, 8)

    @torch.no_grad()
    def follow(self):
        for slow, fast in zip(self.target.parameters(), self.online.parameters(), strict=True):
            slow.mul_(0.99).add_(fast, alpha=0.01)

    def forward(self, one, two):
        with torch.no_grad():
            goal = self.target(two)
        return -F.cosine_similarity(self.predictor(self.online(one)), goal).mean()


model = DistributedDataParallel(BYOL())
optimizer = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad], lr=1e-3)
sampler = DistributedSampler(data)
for epoch in range(4):
    sampler.set_epoch(epoch)
    for batch in DataLoader(data, batch_size=16, sampler=sampler):
        one, two = (batch + 0.1 * torch.randn_like(batch) for _ in range(2))
        loss = model(one, two)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        model.module.follow()
dist.destroy_process_group()
