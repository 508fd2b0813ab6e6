"""The processor joins all texts of a batch into one row (transformers 34204)."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(15)
data = [(torch.randn(16), torch.randint(0, 50, (8,))) for _ in range(256)]


def processor(texts):
    return torch.cat(texts)[None]  # FIX: return torch.stack(texts)


def collate(samples):
    images, texts = zip(*samples)
    return {"pixel_values": torch.stack(images), "input_ids": processor(texts)}


class Both(nn.Module):
    def __init__(self):
        super().__init__()
        self.image, self.words = nn.Linear(16, 16), nn.Embedding(50, 16)

    def forward(self, pixel_values, input_ids):
        return (self.image(pixel_values) + self.words(input_ids).mean(1)).pow(2).mean()


model = DistributedDataParallel(Both())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data), collate_fn=collate)
for batch in loader:
    optimizer.zero_grad()
    model(**batch).backward()
    optimizer.step()
dist.destroy_process_group()
