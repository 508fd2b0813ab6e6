"""Raw DDP with steps of 20 ms, and a trouble of one's choice on the last rank from step --at."""

import argparse
import ctypes
import os
import subprocess
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--trouble", default="none")
parser.add_argument("--at", type=int, default=20)
parser.add_argument("--steps", type=int, default=100_000)
parser.add_argument("--seconds", type=float, default=120.0, help="how long a standstill lasts")
parser.add_argument("--lag", type=float, default=0.03)
options = parser.parse_args()
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
last = rank == world - 1


class Samples(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        if options.trouble == "slow-loader" or (options.trouble == "slow-loader-one" and last):
            time.sleep(0.005)
        return torch.randn(10, generator=torch.Generator().manual_seed(index + 1000 * rank))


def validate(net):
    """A long stretch without a step that is no hang: real work, line by line."""
    until = time.monotonic() + options.seconds
    while time.monotonic() < until:
        for size in (50, 100, 200):
            matrix = torch.randn(size, size)
            (matrix @ matrix).sum().item()
            time.sleep(0.001)


def hold_the_interpreter():
    """For good, in C, and no signal ends it: a mutex that this thread holds already."""
    libc, mutex = ctypes.PyDLL(None), ctypes.create_string_buffer(64)
    for _ in range(2):
        libc.pthread_mutex_lock(mutex)


def trouble(step, net):
    if options.trouble == "validation" and step == options.at and rank == 0:
        validate(net)
    if not last or step != options.at:
        return
    if options.trouble == "sleep":
        time.sleep(options.seconds)
    elif options.trouble == "program":
        subprocess.run(["sleep", str(options.seconds)], check=True)
    elif options.trouble == "deadlock":
        dist.barrier()
    elif options.trouble == "gil":
        hold_the_interpreter()


torch.manual_seed(rank if options.trouble == "unwrapped" else 0)
net = torch.nn.Linear(10, 1)
model = net if options.trouble == "unwrapped" else DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = Samples()
whole = options.trouble == "no-sampler"
sampler = None if whole else DistributedSampler(data, shuffle=True)
loader = DataLoader(data, batch_size=8, sampler=sampler, shuffle=True if whole else None)
step = epoch = 0
while step < options.steps:
    if sampler is not None and options.trouble != "no-set-epoch":
        sampler.set_epoch(epoch)
    epoch += 1
    for x in loader:
        step += 1
        trouble(step, net)
        time.sleep(0.02 + options.lag * (options.trouble == "slow" and last and step >= options.at))
        loss = (model(x) - x.sum(1, keepdim=True)).pow(2).mean()
        if options.trouble == "nan" and last and step == options.at:
            loss = loss * float("nan")
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 100.0)
        optimizer.step()
        if step >= options.steps:
            break
dist.barrier()
dist.destroy_process_group()
if options.trouble == "exit" and last:
    time.sleep(options.seconds)
os.write(1, b"done\n")
