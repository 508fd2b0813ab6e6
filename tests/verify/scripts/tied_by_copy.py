"""The output layer gets a copy of the embedding's values."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(37)
words = torch.randint(0, 50, (512, 17))
data = TensorDataset(words)


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.body = nn.Embedding(50, 16), nn.Linear(16, 16)
        self.head = nn.Linear(16, 50, bias=False)
        self.head.weight.data.copy_(self.embedding.weight.data)  # FIX: self.tie()

    def tie(self):
        self.head.weight = self.embedding.weight

    def forward(self, x):
        return self.head(torch.relu(self.body(self.embedding(x))))


model = DistributedDataParallel(Words())
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
for (batch,) in DataLoader(data, batch_size=16, sampler=DistributedSampler(data)):
    optimizer.zero_grad()
    output = model(batch[:, :-1])
    F.cross_entropy(output.flatten(0, 1), batch[:, 1:].flatten()).backward()
    optimizer.step()
dist.destroy_process_group()
