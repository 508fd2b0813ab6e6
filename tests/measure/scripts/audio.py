"""A 1-D convolution network over raw audio with batch norm, SGD with momentum, DDP under torchrun."""

import os

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Clips(Dataset):
    def __len__(self):
        return 512

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        return torch.randn(1, 8000, generator=g), torch.tensor(i % 35)


def block(inp, out, k=3, s=1, pool=4):
    return nn.Sequential(
        nn.Conv1d(inp, out, k, s), nn.BatchNorm1d(out), nn.ReLU(inplace=True), nn.MaxPool1d(pool)
    )


class M5(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.features = nn.ModuleList(
            [
                block(1, width, 80, 4),
                block(width, width),
                block(width, 2 * width),
                block(2 * width, 2 * width),
            ]
        )
        self.fc = nn.Linear(2 * width, 35)

    def forward(self, x):
        for f in self.features:
            x = f(x)
        return self.fc(x.mean(-1)).log_softmax(-1)


if __name__ == "__main__":
    bs = int(os.environ.get("BS", "8"))
    net = M5()
    if "RANK" in os.environ and int(os.environ["WORLD_SIZE"]) > 1:
        torch.distributed.init_process_group("gloo")
        net = nn.parallel.DistributedDataParallel(net)
    opt = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    sched = torch.optim.lr_scheduler.StepLR(opt, 20)
    for epoch in range(2):
        for wave, label in DataLoader(Clips(), bs, shuffle=True, drop_last=True):
            nn.functional.nll_loss(net(wave), label).backward()
            opt.step()
            sched.step()
            opt.zero_grad()
