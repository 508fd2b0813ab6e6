"""Small real models that are no plain transformer stack: a diffusion U-Net, a DiT, a recommender."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional


class ResidualBlock(nn.Module):
    """Group norm, SiLU, convolution, twice, with the time step added in between."""

    def __init__(self, inputs: int, outputs: int, time: int) -> None:
        super().__init__()
        self.first = nn.Sequential(
            nn.GroupNorm(4, inputs), nn.SiLU(), nn.Conv2d(inputs, outputs, 3, padding=1)
        )
        self.time = nn.Linear(time, outputs)
        self.second = nn.Sequential(
            nn.GroupNorm(4, outputs), nn.SiLU(), nn.Conv2d(outputs, outputs, 3, padding=1)
        )
        self.skip = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, image: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        inner = self.first(image) + self.time(functional.silu(time))[:, :, None, None]
        return self.second(inner) + self.skip(image)


class UNet(nn.Module):
    """Denoising U-Net: down, middle, up, with skip connections and a time embedding."""

    def __init__(self, channels: int = 16, time: int = 32) -> None:
        super().__init__()
        widths = [channels, 2 * channels, 4 * channels]
        self.time = nn.Sequential(nn.Linear(time, time), nn.SiLU(), nn.Linear(time, time))
        self.register_buffer("frequencies", torch.exp(-torch.arange(time // 2) / 4.0))
        self.head = nn.Conv2d(3, channels, 3, padding=1)
        pairs = list(zip([channels, *widths], widths, strict=False))
        self.down = nn.ModuleList(ResidualBlock(a, b, time) for a, b in pairs)
        self.middle = ResidualBlock(widths[-1], widths[-1], time)
        self.up = nn.ModuleList(ResidualBlock(2 * b, a, time) for a, b in reversed(pairs))
        self.tail = nn.Conv2d(channels, 3, 3, padding=1)

    def forward(self, image: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
        angles = step[:, None].float() * self.frequencies
        time = self.time(torch.cat([angles.sin(), angles.cos()], dim=1))
        image = self.head(image)
        skips = []
        for block in self.down:
            image = block(image, time)
            skips.append(image)
            image = functional.avg_pool2d(image, 2)
        image = self.middle(image, time)
        for block in self.up:
            image = functional.interpolate(image, scale_factor=2.0)
            image = block(torch.cat([image, skips.pop()], dim=1), time)
        return self.tail(image)


class DiTBlock(nn.Module):
    """Attention and MLP whose norms are scaled and shifted by the condition (adaLN)."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(hidden, elementwise_affine=False) for _ in range(2))
        self.qkv, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.mlp = nn.Sequential(
            nn.Linear(hidden, 4 * hidden), nn.GELU(), nn.Linear(4 * hidden, hidden)
        )
        self.modulation = nn.Linear(hidden, 6 * hidden)

    def forward(self, tokens: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
        parts = self.modulation(functional.silu(condition))[:, None].chunk(6, dim=-1)
        inner = self.norms[0](tokens) * (1 + parts[0]) + parts[1]
        split = self.qkv(inner).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(*split).transpose(1, 2).flatten(2)
        tokens = tokens + parts[2] * self.out(attended)
        inner = self.norms[1](tokens) * (1 + parts[3]) + parts[4]
        return tokens + parts[5] * self.mlp(inner)


class DiT(nn.Module):
    """Diffusion transformer over patches."""

    def __init__(self, hidden: int = 64, blocks: int = 4, patch: int = 4, image: int = 16) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, hidden, patch, stride=patch)
        self.positions = nn.Parameter(torch.zeros(1, (image // patch) ** 2, hidden))
        self.classes = nn.Embedding(10, hidden)
        self.blocks = nn.ModuleList(DiTBlock(hidden, 4) for _ in range(blocks))
        self.tail = nn.Linear(hidden, 3 * patch * patch)

    def forward(self, image: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        tokens = self.patches(image).flatten(2).transpose(1, 2) + self.positions
        condition = self.classes(label)
        for block in self.blocks:
            tokens = block(tokens, condition)
        return self.tail(tokens)


def mlp(*widths: int) -> nn.Sequential:
    """Linear and ReLU in turn."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Recommender(nn.Module):
    """DLRM: embedding tables, a bottom and a top MLP, pairwise products in between."""

    def __init__(self, tables: tuple[int, ...] = (1000, 50, 7, 400), width: int = 16) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum") for rows in tables)
        self.bottom = mlp(13, 64, width)
        count = len(tables) + 1
        self.top = mlp(width + count * (count - 1) // 2, 32, 1)

    def forward(self, dense: torch.Tensor, sparse: torch.Tensor) -> torch.Tensor:
        dense = self.bottom(dense)
        vectors = [table(sparse[:, index]) for index, table in enumerate(self.tables)]
        stacked = torch.stack([dense, *vectors], dim=1)
        rows, columns = torch.tril_indices(stacked.shape[1], stacked.shape[1], offset=-1)
        products = (stacked @ stacked.transpose(1, 2))[:, rows, columns]
        return self.top(torch.cat([dense, products], dim=1))


class TiedLanguageModel(nn.Module):
    """Embedding and head are one matrix; dropout; a buffer that batch norm updates."""

    def __init__(self, vocab: int = 50, hidden: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab, hidden)
        self.norm = nn.BatchNorm1d(hidden)
        self.dropout = nn.Dropout(0.1)
        self.head = nn.Linear(hidden, vocab, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.dropout(self.norm(self.embedding(tokens).transpose(1, 2))).mT)


def inputs(name: str, batch: int) -> tuple[torch.Tensor, ...]:
    """A batch for the model of that class."""
    if name == "UNet":
        return torch.randn(batch, 3, 32, 32), torch.arange(batch)
    if name == "DiT":
        return torch.randn(batch, 3, 16, 16), torch.zeros(batch, dtype=torch.long)
    if name == "Recommender":
        return torch.randn(batch, 13), torch.ones(batch, 4, 3, dtype=torch.long)
    return (torch.zeros(batch, 12, dtype=torch.long),)
