"""Two ranks that call different collectives: before the first step, or after step --at."""

import argparse

import torch
import torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--at", type=int, default=0)
at = parser.parse_args().at
dist.init_process_group("gloo")
value = torch.zeros(1)
net = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)


def mismatch():
    if dist.get_rank() == 0:
        dist.broadcast(value, 0)
        dist.broadcast(value, 0)  # the first one goes out without anyone listening
        dist.all_reduce(value)
    else:
        dist.barrier()


for step in range(1000):
    if step == at:
        mismatch()
    optimizer.zero_grad()
    net(torch.ones(2, 4)).pow(2).mean().backward()
    for parameter in net.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
