"""The GPT of the recipes: small enough to read in one go, built to be split in every way.

A stage of a pipeline is the same class with fewer blocks; tensor parallelism swaps the linear
layers' weights, context parallelism the `attend` and `positions` of each block. Weights are drawn
per name, so however the model is split, each part starts with the same numbers.
"""

import zlib
from collections.abc import Callable, Iterable

import torch
from recipe_options import VOCABULARY
from torch import Tensor, nn


def norm(x: Tensor) -> Tensor:
    """RMSNorm without gains: the matrix after it can learn them."""
    return nn.functional.rms_norm(x, (x.size(-1),))


def rotate(x: Tensor, positions: Tensor) -> Tensor:
    """Rotary positions: turn the channel pairs of x [B, heads, L, d] by the positions [L]."""
    rates = 10_000 ** -torch.linspace(0, 1, x.size(-1) // 2, device=x.device)
    angles = torch.outer(positions, rates)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)


def causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Every position [B, heads, L, d] reads itself and the earlier ones."""
    return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


class Block(nn.Module):
    """Attention, then an MLP, each added to the residual stream [B, L, hidden]."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.head_width = hidden // heads
        self.attend: Callable[[Tensor, Tensor, Tensor], Tensor] = causal_attention
        self.positions: Tensor | None = None  # of this rank's part of the sequence; None: 0 … L-1
        self.qkv = nn.Linear(hidden, 3 * hidden, bias=False)
        self.mix = nn.Linear(hidden, hidden, bias=False)
        self.up = nn.Linear(hidden, 4 * hidden, bias=False)
        self.down = nn.Linear(4 * hidden, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Let every position read the earlier ones, then think for itself."""
        # Head by head, [q, k, v] each: a tensor-parallel rank's rows are whole heads.
        heads = self.qkv(norm(x)).unflatten(-1, (-1, 3, self.head_width))
        q, k, v = heads.permute(3, 0, 2, 1, 4)
        places = self.positions
        if places is None:
            places = torch.arange(q.size(2), device=q.device)
        q, k = rotate(norm(q), places), rotate(norm(k), places)  # normed: stable at a high lr
        y = self.attend(q, k, v)
        x = x + self.mix(y.transpose(1, 2).flatten(2))
        return x + self.think(norm(x))

    def think(self, x: Tensor) -> Tensor:
        """The MLP."""
        return self.down(self.up(x).relu().square())  # ReLU²: arXiv 2109.08668


class GPT(nn.Module):
    """A decoder-only transformer over bytes, or one pipeline stage of it.

    Args:
        layers: Blocks of the full model.
        hidden: Width of the residual stream.
        heads: Attention heads.
        blocks: Numbers of the blocks of this stage; None = all. The stage with block 0 has the
            embedding, the one with the last block the head.
        block: What makes a block of its width and heads.
    """

    def __init__(
        self,
        layers: int,
        hidden: int,
        heads: int,
        blocks: Iterable[int] | None = None,
        *,
        block: Callable[[int, int], nn.Module] = Block,
    ) -> None:
        super().__init__()
        own = list(range(layers) if blocks is None else blocks)
        self.embedding = nn.Embedding(VOCABULARY, hidden) if 0 in own else None
        self.blocks = nn.ModuleDict({str(number): block(hidden, heads) for number in own})
        last = layers - 1 in own
        self.head = nn.Linear(hidden, VOCABULARY, bias=False) if last else None

    def forward(self, x: Tensor) -> Tensor:
        """Logits [B, L, 256] of bytes [B, L]; a stage passes the residual stream on instead."""
        if self.embedding is not None:
            x = norm(self.embedding(x))
        for block in self.blocks.values():
            x = block(x)
        return x if self.head is None else self.head(norm(x))


def loss(logits: Tensor, targets: Tensor) -> Tensor:
    """The mean loss in nats per byte of predicting targets [B, L]."""
    return nn.functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


def initialise(model: nn.Module, hidden: int, seed: int) -> None:
    """Draw each weight from a generator seeded by its name: the same numbers in any layout.

    Zeros where a block ends make it start as identity, and the loss at ln 256 = 5.545.
    """
    for name, weight in model.named_parameters():
        generator = torch.Generator().manual_seed(zlib.crc32(name.encode()) + seed)
        zero = name.endswith(("mix.weight", "down.weight", "head.weight"))
        scale = 0.0 if zero else hidden**-0.5
        with torch.no_grad():
            weight.copy_(scale * torch.randn(weight.shape, generator=generator))
