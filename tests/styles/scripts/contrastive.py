"""CLIP-like two towers: the loss gathers the features of all ranks, with gradients."""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


class GatherLayer(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        out = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(out, x.contiguous())
        return tuple(out)

    @staticmethod
    def backward(ctx, *grads):
        total = torch.stack(grads)
        dist.all_reduce(total)
        return total[dist.get_rank()]


def gather(x):
    return torch.cat(GatherLayer.apply(x)) if dist.is_initialized() else x


class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.image = nn.Sequential(nn.Linear(96, 128), nn.GELU(), nn.Linear(128, 32))
        self.text = nn.Sequential(nn.Embedding(500, 32), nn.Flatten(), nn.Linear(32 * 8, 32))
        self.logit_scale = nn.Parameter(torch.tensor(2.6))

    def forward(self, image, text):
        return (
            F.normalize(self.image(image), dim=-1),
            F.normalize(self.text(text), dim=-1),
            self.logit_scale.exp(),
        )


def main(cfg):
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    torch.manual_seed(11)
    model = Towers()
    net = nn.parallel.DistributedDataParallel(model) if dist.is_initialized() else model
    optim = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=0.1)
    tokens = torch.randint(500, (1536, 8))
    pixels = torch.randn(500, 96)[tokens].mean(1)
    data = torch.utils.data.TensorDataset(pixels, tokens)
    sampler = (
        torch.utils.data.distributed.DistributedSampler(data) if dist.is_initialized() else None
    )
    loader = torch.utils.data.DataLoader(
        data, cfg.per_gpu_batch, sampler=sampler, shuffle=sampler is None, drop_last=True
    )
    step = 0
    for epoch in range(99):
        if sampler:
            sampler.set_epoch(epoch)
        for image, text in loader:
            a, b, scale = net(image, text)
            a, b = gather(a), gather(b)
            logits = scale * a @ b.t()
            target = torch.arange(len(logits))
            loss = (F.cross_entropy(logits, target) + F.cross_entropy(logits.t(), target)) / 2
            optim.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 5.0)
            optim.step()
            with torch.no_grad():
                model.logit_scale.clamp_(0, 4.6)
            step += 1
            if step >= cfg.max_steps:
                return


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--per-gpu-batch", type=int, default=32)
    parser.add_argument("--max-steps", type=int, default=40)
    main(parser.parse_args())
