"""accelerator.accumulate with a schedule. Fault: one bad record makes rank 1's loss NaN in step 20."""

import argparse

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Prices(Dataset):
    def __init__(self):
        self.x = torch.rand(4000, 12, generator=torch.Generator().manual_seed(3)) + 0.1
        self.x[19 * 64 + 40, 2] = 0.0  # log of it is -inf, times 0 is NaN

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        feature = self.x[i].log() * (self.x[i] > 0.05)
        return feature, self.x[i].sum()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--train_batch_size", type=int, default=16)
    parser.add_argument("--max_train_steps", type=int, default=40)
    args = parser.parse_args()
    accelerator = Accelerator(gradient_accumulation_steps=2, cpu=True)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loader = DataLoader(Prices(), batch_size=args.train_batch_size)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    done = 0
    for x, y in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.smooth_l1_loss(model(x).squeeze(-1), y)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            done += 1
            if done == args.max_train_steps:
                break
    accelerator.end_training()


main()
