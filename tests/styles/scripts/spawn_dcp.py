"""mp.spawn with a process group of its own; torch.distributed.checkpoint, resumed by the script."""

import os
import pathlib
import socket
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn.parallel import DistributedDataParallel

FOLDER = pathlib.Path(os.environ.get("CKPT", "ckpt"))


def worker(rank, world, port, steps, batch):
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    torch.manual_seed(0)
    net = DistributedDataParallel(nn.Sequential(nn.Linear(20, 64), nn.SiLU(), nn.Linear(64, 1)))
    opt = torch.optim.AdamW(net.parameters(), lr=1e-2)
    begin = 0
    saved = sorted(FOLDER.glob("it_*"), key=lambda p: int(p.name[3:]))
    if saved:
        model_state, optim_state = get_state_dict(net, opt)
        state = {"model": model_state, "optim": optim_state, "it": 0}
        dcp.load(state, checkpoint_id=saved[-1])
        set_state_dict(net, opt, model_state_dict=state["model"], optim_state_dict=state["optim"])
        begin = state["it"]
    for it in range(begin, steps):
        x = torch.randn(batch, 20, generator=torch.Generator().manual_seed(it * world + rank))
        loss = (net(x) - x.sum(1, keepdim=True)).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if (it + 1) % 15 == 0:
            model_state, optim_state = get_state_dict(net, opt)
            dcp.save(
                {"model": model_state, "optim": optim_state, "it": it + 1},
                checkpoint_id=FOLDER / f"it_{it + 1}",
            )
        if rank == 0 and it % 10 == 0:
            print("it", it, "loss", loss.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    mp.spawn(worker, (n, port, 40, 16), nprocs=n)
