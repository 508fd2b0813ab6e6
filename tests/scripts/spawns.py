"""Trains in processes that it starts itself, as many examples with torch.multiprocessing do."""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def work(rank, world, store, options):
    # Not by a port: it could be another's by the time that the children have imported torch.
    if world > 1:
        dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=world)
    net = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(1, options.steps + 1):
        if step == options.hang_at and rank == world - 1:
            time.sleep(600)
        loss = net(torch.ones(2, 4)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        if world > 1:
            for parameter in net.parameters():
                dist.all_reduce(parameter.grad)
        optimizer.step()
        time.sleep(options.step_seconds)
        if step == options.fail_at and rank == options.fail_rank:
            raise ValueError("boom")
        if step == options.kill_at and rank == options.fail_rank:
            signal.raise_signal(signal.SIGKILL)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--world", type=int, default=2)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--hang-at", type=int, default=0)
    parser.add_argument("--fail-at", type=int, default=0)
    parser.add_argument("--kill-at", type=int, default=0)
    parser.add_argument("--fail-rank", type=int, default=0)
    parser.add_argument("--ignore-exit-codes", action="store_true")
    parser.add_argument("--step-seconds", type=float, default=0.01)
    parser.add_argument("--method", default="spawn")
    options = parser.parse_args()
    if "SPAWNS_STORE" in os.environ:  # started by the command or the rank below
        work(int(os.environ["RANK"]), options.world, os.environ["SPAWNS_STORE"], options)
        sys.exit()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["SPAWNS_STORE"] = f"{folder}/store"
        if options.method == "torchrun":
            command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
            command += [str(options.world), *sys.argv]
            sys.exit(subprocess.run([sys.executable, *command], check=False).returncode)
        if options.method == "subprocess":  # as Lightning does: this process is rank 0
            for rank in range(1, options.world):
                subprocess.Popen([sys.executable, *sys.argv], env=os.environ | {"RANK": str(rank)})
            work(0, options.world, f"{folder}/store", options)
            sys.exit()
        arguments = (options.world, Path(folder) / "store", options)
        if options.ignore_exit_codes:
            context = mp.get_context(options.method)
            ranks = range(options.world)
            started = [context.Process(target=work, args=(rank, *arguments)) for rank in ranks]
            for process in started:
                process.start()
            for process in started:
                process.join()
        else:
            mp.start_processes(work, arguments, options.world, start_method=options.method)
