"""Matrix products per precision and size, and fused attention, by all processes at once."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import torch

from workbench.compare.calibration.probes.process_group import ProcessGroup, spread, typical
from workbench.estimate.calibration_rows import Product

# m, k, n. CPU: the shapes of models that a CPU trains, from one that stays in the cache upwards.
CPU_SHAPES = (
    *((1024, 128, 512), (1024, 512, 128), (512, 384, 384), (2048, 256, 256)),
    *((256, 768, 768), (1024, 768, 768)),
)
CPU_LOW = ((1024, 768, 768),)
GPU_SHAPES = ((1024,) * 3, (2048,) * 3, (4096,) * 3, (8192,) * 3, (16384, 4096, 4096))
GPU_PRECISIONS = ("bf16", "fp16", "tf32", "fp32")
# Sequences x heads, length, width of a head.
ATTENTIONS = ((16, 128, 64), (8, 256, 64))
GPU_ATTENTIONS = ((64, 1024, 64), (32, 2048, 128))
TYPES = {
    **dict.fromkeys(("fp32", "tf32"), torch.float32),
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}


def measure(group: ProcessGroup, budget: float) -> list[dict[str, Any]]:
    """Rows of `Product`; every process makes the same ones."""
    cases = list(_cases(group))
    rows: list[dict[str, Any]] = []
    for precision, shape in cases:
        m, k, n = shape
        row = Product(
            precision=precision, m=m, k=k, n=n, processes=group.size, flops_per_second=1.0
        )
        work = _attention(group, shape) if precision == "attention" else _product(group, row)
        seconds = group.rounds(work, budget / len(cases))
        rate = row.flops / typical(seconds)
        timed = dataclasses.replace(row, flops_per_second=rate, spread=spread(seconds))
        rows.append(dataclasses.asdict(timed))
    return rows


def _cases(group: ProcessGroup) -> Iterator[tuple[str, tuple[int, ...]]]:
    if group.device.type == "cuda":
        bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
        precisions = [
            gpu_precision for gpu_precision in GPU_PRECISIONS if gpu_precision != "bf16" or bf16
        ]
        yield from ((precision, shape) for precision in precisions for shape in GPU_SHAPES)
        yield from (("attention", shape) for shape in GPU_ATTENTIONS)
        return
    yield from (("fp32", shape) for shape in CPU_SHAPES)
    if group.size == 1:
        yield from (("bf16", shape) for shape in CPU_LOW)
    yield from (("attention", shape) for shape in ATTENTIONS)


def _product(group: ProcessGroup, row: Product) -> Callable[[], object]:
    kind = TYPES[row.precision]
    a = torch.randn(row.m, row.k, device=group.device).to(kind)
    b = torch.randn(row.n, row.k, device=group.device).to(kind).t()  # as a linear's weight lies
    out = torch.empty(row.m, row.n, device=group.device, dtype=kind)
    allowed = row.precision == "tf32"

    def work() -> None:
        torch.backends.cuda.matmul.allow_tf32 = allowed
        torch.mm(a, b, out=out)

    return work


def _attention(group: ProcessGroup, shape: tuple[int, ...]) -> Callable[[], object]:
    heads, length, width = shape
    kind = torch.bfloat16 if group.device.type == "cuda" else torch.float32
    size = (1, heads, length, width)
    q, k, v = (
        torch.randn(size, device=group.device, dtype=kind, requires_grad=True) for _ in range(3)
    )
    gradient = torch.randn(size, device=group.device, dtype=kind)

    def work() -> None:
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        torch.autograd.grad(y, (q, k, v), gradient)

    return work
