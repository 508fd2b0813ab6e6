"""In the style of DCGAN: two models, two optimizers, noise of each rank's own."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

dist.init_process_group("gloo")
torch.manual_seed(7)
data = torch.randn(256, 8)
torch.manual_seed(70 + dist.get_rank())
netG = DDP(nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 8)))
netD = DDP(nn.Sequential(nn.Linear(8, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1), nn.Sigmoid()))
criterion = nn.BCELoss()
optimizerD = torch.optim.Adam(netD.parameters(), lr=2e-4, betas=(0.5, 0.999))
optimizerG = torch.optim.Adam(netG.parameters(), lr=2e-4, betas=(0.5, 0.999))
sampler = DistributedSampler(data)
for epoch in range(4):
    sampler.set_epoch(epoch)
    for real in DataLoader(data, batch_size=16, sampler=sampler):
        netD.zero_grad()
        criterion(netD(real)[:, 0], torch.ones(len(real))).backward()
        fake = netG(torch.randn(len(real), 4))
        criterion(netD(fake.detach())[:, 0], torch.zeros(len(real))).backward()
        optimizerD.step()
        netG.zero_grad()
        criterion(netD(fake)[:, 0], torch.ones(len(real))).backward()
        optimizerG.step()
dist.destroy_process_group()
