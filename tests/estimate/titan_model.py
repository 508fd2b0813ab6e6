"""The model of `titan`: torchtitan's Llama of 2024, to the operation."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional


class Norm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Any) -> Any:
        wide = x.float()
        scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
        return (wide * scale).type_as(x) * self.weight


def rotate(x: Any, turns: Any) -> Any:
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turns).flatten(3).type_as(x)


class Block(nn.Module):
    def __init__(self, shape: Any) -> None:
        super().__init__()
        width, head = shape.hidden, shape.hidden // shape.heads
        linear = partial(nn.Linear, bias=False)
        self.heads, self.kv_heads = shape.heads, shape.kv_heads
        self.wq, self.wo = linear(width, width), linear(width, width)
        self.wk = linear(width, shape.kv_heads * head)
        self.wv = linear(width, shape.kv_heads * head)
        self.w1, self.w3 = linear(width, shape.inner), linear(width, shape.inner)
        self.w2 = linear(shape.inner, width)
        self.attention_norm, self.ffn_norm = Norm(width), Norm(width)

    def attention(self, x: Any, turns: Any) -> Any:
        batch, seq, _ = x.shape
        q, k, v = self.wq(x), self.wk(x), self.wv(x)
        q = rotate(q.view(batch, seq, self.heads, -1), turns)
        k = rotate(k.view(batch, seq, self.kv_heads, -1), turns)
        v = v.view(batch, seq, self.kv_heads, -1)
        k, v = self.expand(k), self.expand(v)
        q, k, v = (each.transpose(1, 2) for each in (q, k, v))
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(out.transpose(1, 2).contiguous().view(batch, seq, -1))

    def expand(self, x: Any) -> Any:
        copies = self.heads // self.kv_heads
        if copies == 1:
            return x
        batch, seq, heads, width = x.shape
        x = x[:, :, :, None, :].expand(batch, seq, heads, copies, width)
        return x.reshape(batch, seq, heads * copies, width)

    def forward(self, x: Any, turns: Any) -> Any:
        h = x + self.attention(self.attention_norm(x), turns)
        y = self.ffn_norm(h)
        return h + self.w2(functional.silu(self.w1(y)) * self.w3(y))


class Llama(nn.Module):
    def __init__(self, shape: Any) -> None:
        super().__init__()
        self.embedding = nn.Embedding(shape.vocab, shape.hidden)
        self.layers = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = Norm(shape.hidden)
        self.output = nn.Linear(shape.hidden, shape.vocab, bias=False)
        pairs = shape.hidden // shape.heads // 2
        self.register_buffer("turns", torch.empty(shape.seq, 1, pairs, dtype=torch.complex64))

    def forward(self, ids: Any) -> Any:
        x = self.embedding(ids)
        for block in self.layers:
            x = block(x, self.turns)
        return self.output(self.norm(x)).float()
