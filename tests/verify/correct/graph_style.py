"""In the style of graph tutorials: a GCN over one whole graph; each rank has its own nodes."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler


class GCN(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(16, 32), nn.Linear(32, 4)

    def forward(self, x, edges):
        x = F.relu(torch.sparse.mm(edges, self.first(x)))
        x = F.dropout(x, p=0.5, training=self.training)
        return torch.sparse.mm(edges, self.second(x))


dist.init_process_group("gloo")
torch.manual_seed(5)
count = 400
features, labels = torch.randn(count, 16), torch.randint(0, 4, (count,))
pairs = torch.randint(0, count, (2, 2000))
edges = torch.sparse_coo_tensor(pairs, torch.full((2000,), 0.2), (count, count)).coalesce()
nodes = list(range(300))
sampler = DistributedSampler(nodes)
model = DistributedDataParallel(GCN())
optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
for epoch in range(6):
    sampler.set_epoch(epoch)
    model.train()
    for chosen in DataLoader(nodes, batch_size=32, sampler=sampler):
        optimizer.zero_grad()
        output = model(features, edges)
        F.cross_entropy(output[chosen], labels[chosen]).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        model(features, edges)[300:].argmax(1)
dist.destroy_process_group()
