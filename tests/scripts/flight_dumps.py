"""Two ranks, of which rank 1 is slow, or does not come to a collective; then torch's own dumps."""

import os
import sys
import threading
import time
from pathlib import Path

os.environ["TORCH_FR_BUFFER_SIZE"] = "512"
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace

folder, mode = Path(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo")
rank = dist.get_rank()


def dump():
    (folder / f"rank_{rank}").write_bytes(_dump_fr_trace())


model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(20):
    if rank == 1:
        time.sleep(0.05)
    model(torch.randn(8, 64)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
if mode == "hang":
    if rank == 0:
        threading.Thread(target=dist.all_reduce, args=(torch.ones(1),), daemon=True).start()
        time.sleep(1.0)
    dump()
    (folder / f"dumped_{rank}").touch()
    while len(list(folder.glob("dumped_*"))) < 2:
        time.sleep(0.05)
    os._exit(0)
dump()
dist.barrier()
dist.destroy_process_group()
