"""Attention drops in evaluation too: it is given its probability in any mode (transformers 33844)."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(14)
inputs = torch.randn(256, 8, 16)
data = TensorDataset(inputs, inputs.mean(1)[:, :4].argmax(1))


class Attention(nn.Module):
    def __init__(self, dropout=0.1):
        super().__init__()
        self.dropout = dropout
        self.qkv, self.head = nn.Linear(16, 48), nn.Linear(16, 4)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        rate = self.dropout  # FIX: rate = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=rate)
        return self.head(y.transpose(1, 2).flatten(2).mean(1))


model = DistributedDataParallel(Attention())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(data, batch_size=16, sampler=DistributedSampler(data))
for step, (batch, target) in enumerate(loader):
    if step % 4 == 2:
        model.eval()
        with torch.no_grad():
            print("validation", F.cross_entropy(model(batch), target).item())
        model.train()
    optimizer.zero_grad()
    F.cross_entropy(model(batch), target).backward()
    optimizer.step()
dist.destroy_process_group()
