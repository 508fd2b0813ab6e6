"""The dtype that each --precision computes with, which is also that of frozen weights."""

import torch

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
