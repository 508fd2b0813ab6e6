"""A U-Net for segmentation with Accelerate; the optimizer's class is chosen by name."""

import argparse

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Scans(Dataset):
    def __len__(self):
        return 300

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        return torch.randn(1, 64, 64, generator=g), torch.randint(0, 2, (64, 64), generator=g)


def double(i, o):
    return nn.Sequential(
        nn.Conv2d(i, o, 3, padding=1, bias=False),
        nn.BatchNorm2d(o),
        nn.ReLU(True),
        nn.Conv2d(o, o, 3, padding=1, bias=False),
        nn.BatchNorm2d(o),
        nn.ReLU(True),
    )


class UNet(nn.Module):
    def __init__(self, c=16):
        super().__init__()
        self.down = nn.ModuleList([double(1, c), double(c, 2 * c), double(2 * c, 4 * c)])
        self.mid = double(4 * c, 8 * c)
        self.up = nn.ModuleList(
            [
                nn.ConvTranspose2d(8 * c, 4 * c, 2, 2),
                nn.ConvTranspose2d(4 * c, 2 * c, 2, 2),
                nn.ConvTranspose2d(2 * c, c, 2, 2),
            ]
        )
        self.dec = nn.ModuleList([double(8 * c, 4 * c), double(4 * c, 2 * c), double(2 * c, c)])
        self.out = nn.Conv2d(c, 2, 1)

    def forward(self, x):
        skips = []
        for d in self.down:
            x = d(x)
            skips.append(x)
            x = nn.functional.max_pool2d(x, 2)
        x = self.mid(x)
        for u, d in zip(self.up, self.dec):
            x = d(torch.cat([skips.pop(), u(x)], 1))
        return self.out(x)


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--train-batch-size", type=int, default=4)
    ap.add_argument("--optim", default="RMSprop")
    args = ap.parse_args()
    acc = Accelerator()
    net = UNet()
    opt = getattr(torch.optim, args.optim)(net.parameters(), lr=1e-4)
    net, opt, dl = acc.prepare(net, opt, DataLoader(Scans(), batch_size=args.train_batch_size))
    for x, y in dl:
        with acc.accumulate(net):
            acc.backward(nn.functional.cross_entropy(net(x), y))
            opt.step()
            opt.zero_grad()
