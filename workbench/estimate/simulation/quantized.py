"""Frozen linears of 4 bits as bitsandbytes stores them, for QLoRA.

``Linear4bit`` keeps codes of half a byte, one fp32 maximum per 64 of them and, double quantized,
those maxima in bytes with a maximum per 256. Forward and backward each turn the matrix back into a
whole one (``dequantize_4bit``), which lives as long as the product.
"""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportIncompatibleMethodOverride=false

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from workbench.describe import Workload

BLOCK, NESTED_BLOCK, LEVELS, NESTED_LEVELS = 64, 256, 16, 256  # bitsandbytes' defaults


class Linear4Bit(nn.Linear):
    """A frozen linear with packed weights; PEFT takes it for the linear that it replaces."""

    absmax: Any
    bias: Any
    nested_absmax: Any
    wide: torch.dtype
    keeps_input: bool

    @staticmethod
    def pack(linear: nn.Linear, *, double: bool, keeps_input: bool) -> None:
        """Turn `linear` (on meta) into this class, with packed weights of its own size."""
        count = linear.weight.numel()
        blocks = -(-count // BLOCK)
        wide = linear.weight.dtype
        meta: Any = {"device": linear.weight.device}
        packed: Any = linear
        packed.__class__ = Linear4Bit
        packed.wide, packed.keeps_input = wide, keeps_input
        weight = torch.empty((-(-count // 2), 1), dtype=torch.uint8, **meta)
        packed.weight = nn.Parameter(weight, requires_grad=False)
        packed.register_buffer("code", torch.empty(LEVELS, **meta))
        width = torch.uint8 if double else torch.float32
        packed.register_buffer("absmax", torch.empty(blocks, dtype=width, **meta))
        nested = torch.empty(-(-blocks // NESTED_BLOCK), **meta) if double else None
        packed.register_buffer("nested_absmax", nested)
        if double:
            packed.register_buffer("nested_code", torch.empty(NESTED_LEVELS, **meta))
            packed.register_buffer("offset", torch.empty((), **meta))

    def dequantized(self) -> Any:
        """The whole matrix in the type that it was quantized from."""
        if self.nested_absmax is None:
            return torch.empty(self.out_features, self.in_features, dtype=self.wide)
        maxima = torch.empty(self.absmax.shape, dtype=torch.float32)  # these first
        matrix = torch.empty(self.out_features, self.in_features, dtype=self.wide)
        del maxima
        return matrix

    def forward(self, input: Any) -> Any:  # noqa: A002  (torch's name)
        """Compute in the base's type, which is what QLoRA sets as compute dtype."""
        product = _Product.apply(input.to(self.wide), self)
        if self.bias is not None:
            product = product + self.bias.to(self.wide)
        return product.to(input.dtype)


class _Product(torch.autograd.Function):
    """``MatMul4Bit``: it saves the packed weights, up to 0.42 the input as well."""

    @staticmethod
    def forward(context: Any, rows: Any, linear: Any) -> Any:
        """Rows times the matrix turned back."""
        context.linear = linear
        if linear.keeps_input:
            context.save_for_backward(rows)
        return functional.linear(rows, linear.dequantized().to(rows.dtype))

    @staticmethod
    def backward(context: Any, gradient: Any) -> Any:
        """The gradient of the rows; the frozen matrix has none."""
        matrix = context.linear.dequantized().to(gradient.dtype)
        return torch.matmul(gradient, matrix), None


def quantize(trainee: Any, workload: Workload, blocks: list[nn.Module]) -> None:
    """Pack the blocks' frozen linears (and the head, where asked), as `quantization` says."""
    if workload.quantization == "none":
        return
    double, keeps = workload.quantization == "nf4-dq", workload.kernels.quantized_inputs
    linears = [
        module
        for block in blocks
        for name, module in block.named_modules()
        if isinstance(module, nn.Linear) and "lora_" not in name
    ]
    if workload.quantized_head and isinstance(trainee.head, nn.Linear):
        linears.append(trainee.head)
    for linear in linears:
        Linear4Bit.pack(linear, double=double, keeps_input=keeps)
    if workload.kernels.fp32_unquantized:  # PEFT's prepare_model_for_kbit_training
        for parameter in trainee.parameters():
            if not parameter.requires_grad and parameter.is_floating_point():
                parameter.data = parameter.data.float()
