"""In the style of vision reference scripts: ViT, cosine with warm-up, mixup, a moving average."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class ViT(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.patches = nn.Conv2d(3, width, kernel_size=8, stride=8)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(torch.randn(1, 17, width) * 0.02)
        layer = nn.TransformerEncoderLayer(width, 4, 64, 0.1, "gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, 10)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.places
        return self.head(self.encoder(x)[:, 0])


dist.init_process_group("gloo")
torch.manual_seed(3)
images, labels = torch.randn(256, 3, 32, 32), torch.randint(0, 10, (256,))
data = TensorDataset(images, labels)
network = ViT()
average = AveragedModel(network, multi_avg_fn=get_ema_multi_avg_fn(0.99))
model = DistributedDataParallel(network)
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4 * dist.get_world_size())
warmup = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, total_iters=4)
cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=60)
schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, [warmup, cosine], milestones=[4])
sampler = DistributedSampler(data, shuffle=True)
loader = DataLoader(data, batch_size=16, sampler=sampler, drop_last=True)
for epoch in range(4):
    sampler.set_epoch(epoch)
    model.train()
    for batch, target in loader:
        lam = torch.distributions.Beta(0.8, 0.8).sample()
        mixed = lam * batch + (1 - lam) * batch.flip(0)
        output = model(mixed)
        loss = lam * F.cross_entropy(output, target, label_smoothing=0.1)
        loss = loss + (1 - lam) * F.cross_entropy(output, target.flip(0), label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        average.update_parameters(network)
    average.eval()
    with torch.no_grad():
        average(images[:32])
dist.destroy_process_group()
