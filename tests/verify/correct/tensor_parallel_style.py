"""In the style of pytorch/examples' tensor_parallel_example: parallelize_module over all ranks."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


class ToyModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.in_proj, self.relu, self.out_proj = nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 5)

    def forward(self, x):
        return self.out_proj(self.relu(self.in_proj(x)))


dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
torch.manual_seed(11)
model = parallelize_module(
    ToyModel(), mesh, {"in_proj": ColwiseParallel(), "out_proj": RowwiseParallel()}
)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.25, foreach=True)
for step in range(20):
    torch.manual_seed(step)
    output = model(torch.rand(20, 10))
    optimizer.zero_grad()
    output.pow(2).sum().backward()
    optimizer.step()
dist.destroy_process_group()
