"""Ranks that differ in the size of their batches, or have a slow link between them.

Work, and the time that a sum takes on the link, are slept, so that ranks do not need a core each.
"""

import argparse
import os
import time

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--rank", type=int, default=2, help="the one with the largest batches")
parser.add_argument("--times", type=int, default=1, help="so much larger")
parser.add_argument("--link", type=float, help="megabytes of gradients a second; default: at once")
parser.add_argument("--work", type=float, default=0.01, help="seconds of work for 8 samples")
parser.add_argument("--steps", type=int, default=40)
options = parser.parse_args()
BATCH = 8 * (options.times if int(os.environ["RANK"]) == options.rank else 1)


class Sleeps(torch.autograd.Function):
    """A third of the work forward, the rest backward."""

    @staticmethod
    def forward(ctx, x):
        ctx.seconds = options.work * len(x) / 8
        time.sleep(ctx.seconds / 3)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(2 * ctx.seconds / 3)
        return gradient


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 4 * BATCH * (options.steps + 2)

    def __getitem__(self, index):
        return torch.randn(64, generator=torch.Generator().manual_seed(index))


torch.distributed.init_process_group("gloo")
torch.manual_seed(0)
layers = torch.nn.Sequential(torch.nn.Linear(64, 1024), torch.nn.Linear(1024, 1024))
model = torch.nn.parallel.DistributedDataParallel(layers)


def slow(_state, bucket):
    """The sum of a bucket, which has arrived when the link has carried it."""
    gradients = bucket.buffer().div_(torch.distributed.get_world_size())
    seconds = gradients.nbytes / (1e6 * options.link)

    def arrived(future):
        time.sleep(seconds)
        return future.value()[0]

    return torch.distributed.all_reduce(gradients, async_op=True).get_future().then(arrived)


if options.link:
    model.register_comm_hook(None, slow)
data = Data()
sampler = torch.utils.data.DistributedSampler(data)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
loader = torch.utils.data.DataLoader(data, batch_size=BATCH, sampler=sampler)
for step, batch in enumerate(loader, 1):
    Sleeps.apply(model(batch)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step == options.steps:
        break
torch.distributed.destroy_process_group()
