"""Images that every machine already has: shapes drawn as they are needed, each from its number.

Used by vision.py beside this file; it needs torch alone.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

CLASSES = 8


def draw(numbers: Sequence[int], side: int) -> tuple[Tensor, Tensor]:
    """The images [n, 3, side, side] and classes [n] of these numbers, on any machine the same."""
    generators = [torch.Generator().manual_seed(number) for number in numbers]
    dice = torch.stack([torch.rand(10, generator=generator) for generator in generators])
    noise = torch.stack([torch.randn(3, side, side, generator=g) for g in generators])
    kinds = (dice[:, 0] * CLASSES).long()
    radius = (0.45 + 0.2 * dice[:, 1])[:, None, None]
    line = torch.linspace(-1, 1, side)
    x = (line[None, None, :] - 0.5 * (dice[:, 2, None, None] - 0.5)) / radius
    y = (line[None, :, None] - 0.5 * (dice[:, 3, None, None] - 0.5)) / radius
    r, square = (x**2 + y**2).sqrt(), torch.maximum(x.abs(), y.abs())
    shapes = [
        r < 1,  # a disc
        (r < 1) & (r > 0.6),  # a ring
        square < 1,
        (square < 1) & (square > 0.6),  # a frame
        (square < 1) & (torch.minimum(x.abs(), y.abs()) < 0.3),  # a cross
        (square < 1) & (x.abs() < (y + 1) / 2),  # a triangle
        (square < 1) & (torch.sin(6 * x) > 0),  # upright stripes
        (square < 1) & (torch.sin(6 * y) > 0),  # lying stripes
    ]
    inside = torch.stack(shapes, dim=1)[torch.arange(len(kinds)), kinds][:, None].float()
    paint, ground = 0.5 + 0.5 * dice[:, 4:7, None, None], 0.4 * dice[:, 7:, None, None]
    return 4 * (inside * paint + (1 - inside) * ground + 0.1 * noise - 0.4), kinds
