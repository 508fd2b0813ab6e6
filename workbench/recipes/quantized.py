"""Base models in 4 bits (bitsandbytes' nf4), for the recipes that train adapters on them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import BitsAndBytesConfig


def nf4(dtype: torch.dtype) -> dict[str, Any]:
    """Keywords for `from_pretrained`: linear layers in nf4, multiplied in this dtype."""
    config = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=dtype
    )
    return {"quantization_config": config}


def keep_scales(model: nn.Module) -> None:
    """Keep the blocks' scales as they were loaded, in training and evaluation.

    On a CPU with AVX512-BF16, bitsandbytes (0.50) packs a layer at its first forward in evaluation
    mode and rounds its scales to bf16. That stays: samples before the first step would change what
    is trained, and only on some processors. Evaluation on such a CPU is slower without it.
    """
    layer: Any
    for layer in model.modules():
        if hasattr(layer, "support_avx512bf16_for_cpu"):
            layer.support_avx512bf16_for_cpu = False
