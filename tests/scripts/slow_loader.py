"""A loop that waits for its data: each sample takes a while to make, in as many workers as asked."""

import argparse
import time

import torch
from torch.utils.data import DataLoader, Dataset


class Slow(Dataset):
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.seconds)
        return torch.full((10,), float(index % 7))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--sample-seconds", type=float, default=0.01)
    parser.add_argument("--hog-mb", type=int, default=0, help="memory per sample of the batch")
    options = parser.parse_args()
    torch.set_num_threads(1)
    loader = DataLoader(
        Slow(options.sample_seconds), batch_size=options.batch, num_workers=options.workers
    )
    model = torch.nn.Linear(10, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    hog = torch.ones(options.hog_mb * options.batch, 1 << 18)
    for batch in loader:
        loss = model(batch).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
