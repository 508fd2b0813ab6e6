"""frozen_stages is set, and takes effect in train(), which nothing calls (mmpretrain 702)."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(11)
inputs = torch.randn(512, 16)
data = TensorDataset(inputs, inputs[:, :4].argmax(1))


class Backbone(nn.Module):
    def __init__(self, frozen_stages):
        super().__init__()
        self.frozen_stages = frozen_stages
        self.stages = nn.ModuleList([nn.Linear(16, 16), nn.Linear(16, 16)])
        self.head = nn.Linear(16, 4)

    def train(self, mode=True):
        super().train(mode)
        for stage in self.stages[: self.frozen_stages]:
            stage.requires_grad_(False)
        return self

    def forward(self, x):
        for stage in self.stages:
            x = torch.relu(stage(x))
        return self.head(x)


network = Backbone(frozen_stages=1)  # FIX: network = Backbone(frozen_stages=1).train()
model = DistributedDataParallel(network)
optimizer = torch.optim.SGD([one for one in model.parameters() if one.requires_grad], lr=0.1)
for batch, target in DataLoader(data, batch_size=16, sampler=DistributedSampler(data)):
    optimizer.zero_grad()
    F.cross_entropy(model(batch), target).backward()
    optimizer.step()
dist.destroy_process_group()
