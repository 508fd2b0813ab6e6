"""Every loader worker draws the same augmentation (stackoverflow 67180955)."""

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Noisy(Dataset):
    def __len__(self):
        return 256

    def __getitem__(self, index):
        crop = np.random.randint(0, 1000, 16).astype("float32") / 1000
        return torch.from_numpy(crop)


def seed_worker(worker):
    np.random.seed(0)  # FIX: np.random.seed(torch.initial_seed() % 2**32)


dist.init_process_group("gloo")
torch.manual_seed(13 + dist.get_rank())
data = Noisy()
model = DistributedDataParallel(nn.Linear(16, 16))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
options = {"num_workers": 2, "worker_init_fn": seed_worker}
for batch in DataLoader(data, batch_size=8, sampler=DistributedSampler(data), **options):
    optimizer.zero_grad()
    (model(batch) - batch).pow(2).mean().backward()
    optimizer.step()
dist.destroy_process_group()
