"""In the style of PyTorch's multi-GPU series: a Trainer class, DistributedSampler, a snapshot."""

import os

import torch
import torch.nn.functional as F
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


class MyTrainDataset(Dataset):
    def __init__(self, size):
        self.data = [(torch.rand(20), torch.rand(1)) for _ in range(size)]

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        return self.data[index]


class Trainer:
    def __init__(self, model, train_data, optimizer, save_every):
        self.rank = int(os.environ["RANK"])
        self.train_data, self.optimizer, self.save_every = train_data, optimizer, save_every
        self.model = DDP(model)

    def _run_batch(self, source, targets):
        self.optimizer.zero_grad()
        F.mse_loss(self.model(source), targets).backward()
        self.optimizer.step()

    def _run_epoch(self, epoch):
        print(f"[rank {self.rank}] epoch {epoch} | batches {len(self.train_data)}")
        self.train_data.sampler.set_epoch(epoch)
        for source, targets in self.train_data:
            self._run_batch(source, targets)

    def train(self, epochs):
        for epoch in range(epochs):
            self._run_epoch(epoch)
            if self.rank == 0 and epoch % self.save_every == 0:
                torch.save(self.model.module.state_dict(), "snapshot.pt")


init_process_group("gloo")
torch.manual_seed(0)
dataset = MyTrainDataset(256)
model = torch.nn.Linear(20, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
loader = DataLoader(dataset, batch_size=32, shuffle=False, sampler=DistributedSampler(dataset))
Trainer(model, loader, optimizer, 2).train(6)
destroy_process_group()
