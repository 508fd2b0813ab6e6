"""A small Fabric of one's own: setup(), backward(), no_sync accumulation, persistent workers."""

import contextlib
import os

import torch
import torch.distributed as dist
from ownlib.cli import get_args
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Fabric:
    def __init__(self):
        self.world_size = int(os.environ.get("WORLD_SIZE", 1))
        self.rank = int(os.environ.get("RANK", 0))
        if self.world_size > 1:
            dist.init_process_group("gloo")

    def setup(self, model, optimizer):
        return (DistributedDataParallel(model) if self.world_size > 1 else model), optimizer

    def setup_loader(self, dataset, **kwargs):
        self.sampler = DistributedSampler(dataset, self.world_size, self.rank, shuffle=True)
        return DataLoader(dataset, sampler=self.sampler, **kwargs)

    def backward(self, loss):
        loss.backward()

    def no_backward_sync(self, module, enabled):
        if enabled and hasattr(module, "no_sync"):
            return module.no_sync()
        return contextlib.nullcontext()


class Digits(Dataset):
    def __init__(self):
        generator = torch.Generator().manual_seed(1)
        self.x = torch.randn(2048, 64, generator=generator)
        self.y = (self.x @ torch.randn(64, 10, generator=generator)).argmax(1)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return {"image": self.x[index], "label": self.y[index]}


def main():
    args = get_args()
    fabric = Fabric()
    torch.manual_seed(3)
    net = nn.Sequential(
        nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 10)
    )
    model, optimizer = fabric.setup(net, torch.optim.AdamW(net.parameters(), lr=args.lr))
    loader = fabric.setup_loader(
        Digits(),
        batch_size=args.micro_batch,
        num_workers=1,
        persistent_workers=True,
        drop_last=True,
    )
    step = 0
    for epoch in range(1000):
        fabric.sampler.set_epoch(epoch)
        for number, batch in enumerate(loader):
            last = (number + 1) % args.accumulate == 0
            with fabric.no_backward_sync(model, enabled=not last):
                loss = nn.functional.cross_entropy(model(batch["image"]), batch["label"])
                fabric.backward(loss / args.accumulate)
            if last:
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
                step += 1
                if fabric.rank == 0 and step % 10 == 0:
                    print(f"step {step}: {loss.item():.4f}")
                if step == args.steps:
                    return


if __name__ == "__main__":
    main()
    if dist.is_initialized():
        dist.destroy_process_group()
