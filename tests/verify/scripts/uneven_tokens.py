"""A mean over each rank's own tokens, with padding."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(24)
data = []
for index in range(256):
    words = torch.randint(0, 50, (32,))
    words[4 + (index * 7) % 28 if index % 2 else 30 :] = -100
    data.append(words)
model = DistributedDataParallel(nn.Sequential(nn.Embedding(51, 16), nn.Linear(16, 50)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for words in DataLoader(data, batch_size=4, sampler=DistributedSampler(data, shuffle=False)):
    optimizer.zero_grad()
    output = model(words.clamp(min=0))
    kind = "mean"  # FIX: kind = "sum"
    loss = F.cross_entropy(output.flatten(0, 1), words.flatten(), reduction=kind)
    count = (words >= 0).sum()
    dist.all_reduce(count)
    loss = loss * 1.0  # FIX: loss = loss * dist.get_world_size() / count
    loss.backward()
    optimizer.step()
dist.destroy_process_group()
