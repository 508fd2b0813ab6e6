"""A vision transformer with Accelerate and click-less globals; the batch size is a constant."""

import os

import torch
import torch.nn as nn
from accelerate import Accelerator
from torch.utils.data import DataLoader, Dataset

BATCH = int(os.environ.get("SLURM_BATCH", 12))


class Images(Dataset):
    def __len__(self):
        return 1024

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        return {"pixels": torch.randn(3, 32, 32, generator=g), "label": i % 100}


class ViT(nn.Module):
    def __init__(self, dim=128, depth=5, heads=4):
        super().__init__()
        self.patch = nn.Conv2d(3, dim, 4, 4)
        self.cls = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos = nn.Parameter(torch.zeros(1, 65, dim))
        layer = [
            nn.TransformerEncoderLayer(
                dim, heads, 4 * dim, 0.1, "gelu", batch_first=True, norm_first=True
            )
            for _ in range(depth)
        ]
        self.blocks = nn.Sequential(*layer)
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, 100)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1) + self.pos
        return self.head(self.norm(self.blocks(x))[:, 0])


accelerator = Accelerator()
model = ViT()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
model, optimizer, loader = accelerator.prepare(
    model, optimizer, DataLoader(Images(), batch_size=BATCH, shuffle=True)
)
for batch in loader:
    loss = nn.functional.cross_entropy(model(batch["pixels"]), batch["label"])
    accelerator.backward(loss)
    accelerator.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
