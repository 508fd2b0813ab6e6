"""One cell of the grid: a strategy, and one rank that is slow in one phase of each step.

Data-parallel strategies come from Accelerate as the launch says; tensor, context and pipeline
parallelism are plain torch. Most of the work is slept, so that ranks do not need a core each.
"""

import argparse
import ctypes
import os
import subprocess
import time
from pathlib import Path

import torch
import torch.distributed as dist

parser = argparse.ArgumentParser()
GROUPS = next(
    one for one in map(Path, ("/sys/fs/cgroup/cpu", "/sys/fs/cgroup", "/")) if one.exists()
)


def in_group(folder, *settings):
    """Put this process into a cgroup, made with these settings; needs root."""
    folder.mkdir(exist_ok=True)
    for name, value in (*settings, ("cgroup.procs", os.getpid())):
        if (folder / name).exists():
            (folder / name).write_text(str(value))


parser.add_argument("--strategy", default="ddp")
parser.add_argument("--phase", default="none")
parser.add_argument("--rank", type=int, default=1)
parser.add_argument("--lag", type=float, default=0.0, help="seconds a step")
parser.add_argument("--work", type=float, default=0.08, help="seconds of a healthy step")
parser.add_argument("--steps", type=int, default=40)
parser.add_argument("--link", default="", help="of the ranks' network namespaces")
options = parser.parse_args()


def in_namespace(rank, world):
    """Make the group with an interface of this rank's own; see tests/diagnose/links.py."""
    port = int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(os.environ["MASTER_ADDR"], port, world, rank == 0, use_libuv=False)
    with Path(f"/run/netns/{options.link}-{rank}").open() as space:
        if ctypes.CDLL(None, use_errno=True).setns(space.fileno(), 0x40000000):  # CLONE_NEWNET
            raise OSError(ctypes.get_errno(), "setns")
    os.environ["GLOO_SOCKET_IFNAME"] = f"{options.link}i{rank}"
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)


if options.link:
    in_namespace(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
elif options.strategy in {"tp", "cp", "pp"}:
    dist.init_process_group("gloo")
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
SLOW = options.rank == RANK
WIDTH, BLOCKS, BATCH = 64, 4, 8
QUOTA = GROUPS / f"workbench-grid-{os.getpid()}" if SLOW and options.phase == "quota" else None
if QUOTA:  # of a core, so that what is computed takes as much longer as the lag says
    share = int(100_000 / (1 + options.lag / options.work))
    in_group(QUOTA, ("cpu.cfs_quota_us", share), ("cpu.max", f"{share} 100000"))


def work(seconds):
    """Slept, but where a quota is to be felt."""
    begun = time.thread_time()
    while options.phase == "quota" and time.thread_time() - begun < seconds / 2:
        pass
    time.sleep(seconds / 2 if options.phase == "quota" else seconds)


def lag(phase, share=1.0):
    if SLOW and options.phase == phase:
        time.sleep(share * options.lag)


ANCHOR = torch.zeros(1, requires_grad=True)  # the first block has a backward pass, too


class Sleeps(torch.autograd.Function):
    """A third of the work forward, the rest backward, spread over the blocks."""

    @staticmethod
    def forward(ctx, x, anchor):
        work(options.work / 3 / len(MINE))
        lag("forward", 1 / len(MINE))
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        work(2 * options.work / 3 / len(MINE))
        lag("backward", 1 / len(MINE))
        return gradient, None


class Shift(torch.autograd.Function):
    """What the neighbour in the ring has, as context parallelism passes keys and values on."""

    @staticmethod
    def forward(ctx, x):
        return passed(x, 1)

    @staticmethod
    def backward(ctx, gradient):
        return passed(gradient, -1)


def passed(x, by):
    got = torch.empty_like(x)
    to, of = (RANK + by) % WORLD, (RANK - by) % WORLD
    ops = [dist.P2POp(dist.isend, x.contiguous(), to), dist.P2POp(dist.irecv, got, of)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    return got


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        x = Sleeps.apply(x, ANCHOR)
        if options.strategy == "cp":
            x = x + 0.1 * Shift.apply(x)
        return x + self.down(torch.relu(self.up(x)))


class Slow(torch.optim.SGD):
    def step(self, *args, **kwargs):
        lag("optimizer")
        return super().step(*args, **kwargs)


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return BATCH * WORLD * (options.steps + 2)

    def __getitem__(self, index):
        lag("input", 1 / BATCH)
        return torch.randn(WIDTH, generator=torch.Generator().manual_seed(index))


def pause():
    """Stop this process for the lag, about once a step, as a hypervisor does."""
    words = f"while sleep {options.work} && kill -STOP {os.getpid()}; do sleep {options.lag}; kill -CONT {os.getpid()}; done"
    return subprocess.Popen(["sh", "-c", words], stderr=subprocess.DEVNULL)


class Slowly:
    """A file on a slow disk."""

    def write(self, data):
        return len(data)

    def flush(self):
        lag("checkpoint", 2.0)


def save(step, content):
    if options.phase == "checkpoint" and step % 2 == 0:
        torch.save(content, Slowly())


torch.manual_seed(0)
MINE = range(BLOCKS // WORLD if options.strategy == "pp" else BLOCKS)
layers = torch.nn.Sequential(*[Block() for _ in MINE])
loader = torch.utils.data.DataLoader(Data(), batch_size=BATCH, shuffle=False)
pauses = pause() if SLOW and options.phase == "host" else None


def tokens():
    for step, batch in enumerate(loader, 1):
        yield step, batch
        save(step, {"step": step})
        if step == options.steps:
            return


def plain(model, loss_of):
    optimizer = Slow(model.parameters(), lr=1e-3)
    for _, batch in tokens():
        loss_of(model, batch)
        optimizer.step()
        optimizer.zero_grad()


def data_parallel():
    from accelerate import Accelerator

    accelerator = Accelerator()
    model, optimizer, feed = accelerator.prepare(layers, Slow(layers.parameters(), lr=1e-3), loader)
    for step, batch in enumerate(feed, 1):
        loss = model(batch).pow(2).mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        save(step, {"step": step})
        if step == options.steps:
            break


def backward(model, batch):
    model(batch).pow(2).mean().backward()


def tensor_parallel():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = init_device_mesh("cpu", (WORLD,))
    for block in layers:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    plain(layers, backward)


def pipeline_parallel():
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    stage = PipelineStage(layers, RANK, WORLD, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, 4, loss_fn=lambda out, target: (out - target).pow(2).mean())

    def run(_model, batch):
        if RANK == 0:
            schedule.step(batch)
        elif RANK == WORLD - 1:
            schedule.step(target=batch)
        else:
            schedule.step()

    plain(layers, run)


if options.strategy == "tp":
    tensor_parallel()
elif options.strategy == "pp":
    pipeline_parallel()
elif options.strategy == "cp":
    plain(torch.nn.parallel.DistributedDataParallel(layers), backward)
else:
    data_parallel()
if QUOTA:
    in_group(GROUPS)
    QUOTA.rmdir()
if pauses is not None:
    pauses.kill()
    pauses.wait()
if dist.is_initialized():
    dist.barrier()
    dist.destroy_process_group()
