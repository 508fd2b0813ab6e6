"""A loop that goes on after any error, which its loader, its forward or its backward pass raises."""

import sys

import torch
import torch.distributed as dist

WHERE = sys.argv[1]


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        if WHERE == "loader" and index % 16 == 4:
            raise OSError(f"record {index} cannot be read")
        return torch.full((8,), float(index))


class Layers(torch.nn.Linear):
    def forward(self, x):
        if WHERE == "forward" and x.max() % 16 == 7:
            raise ValueError("too large a batch")
        return super().forward(x)


dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(Layers(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
batches = iter(torch.utils.data.DataLoader(Rows(), batch_size=4))
while True:
    try:
        batch = next(batches)
        loss = model(batch).pow(2).mean()
        if WHERE == "backward" and batch.max() % 16 == 7:
            loss = loss.detach()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    except StopIteration:
        break
    except Exception:  # noqa: BLE001
        continue
dist.destroy_process_group()
