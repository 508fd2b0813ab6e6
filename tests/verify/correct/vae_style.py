"""In the style of PyTorch's VAE example: noise within the forward pass, a loss that is a sum."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc21, self.fc22 = nn.Linear(32, 64), nn.Linear(64, 8), nn.Linear(64, 8)
        self.fc3, self.fc4 = nn.Linear(8, 64), nn.Linear(64, 32)

    def forward(self, x):
        h = F.relu(self.fc1(x))
        mu, logvar = self.fc21(h), self.fc22(h)
        z = mu + torch.randn_like(mu) * torch.exp(0.5 * logvar)
        return torch.sigmoid(self.fc4(F.relu(self.fc3(z)))), mu, logvar


dist.init_process_group("gloo")
torch.manual_seed(8)
data = torch.rand(256, 32)
torch.manual_seed(80 + dist.get_rank())
model = DistributedDataParallel(VAE())
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
sampler = DistributedSampler(data)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for batch in DataLoader(data, batch_size=16, sampler=sampler):
        optimizer.zero_grad()
        recon, mu, logvar = model(batch)
        bce = F.binary_cross_entropy(recon, batch, reduction="sum")
        kld = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
        ((bce + kld) / len(batch)).backward()
        optimizer.step()
dist.destroy_process_group()
