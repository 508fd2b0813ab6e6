"""Memory of one training process: a first closed form for decoder-only models under DDP.

Model states are exact arithmetic (corrections.md C1, C9: 16 bytes per parameter with AdamW in
mixed precision, 16 in fp32 as well). Activations follow the saved tensors of a pre-norm block
with SDPA. The peak is the end of the forward pass plus the loss's transients.
"""

from __future__ import annotations

from workbench.describe import Strategy, Workload
from workbench.errors import UsageError
from workbench.estimate.parts import Estimate
from workbench.units import MIB

# Resident memory of a CPU rank beyond its tensors, torch 2.13 CPU build and accelerate 1.15,
# 2026-11-21: 314 MiB for tests/scripts/accelerate_loop.py, 364 MiB for the recipe gpt. See it again
# with `workbench launch tests/scripts/accelerate_loop.py --wait && workbench show`.
CPU_CONTEXT_BYTES = 364 * MIB
# CUDA context + kernels 0.47-0.92 GiB (stas00/ml-engineering, A100, torch 2.1); NCCL comes on top.
CUDA_CONTEXT_BYTES = 700 * MIB
NCCL_BYTES = 400 * MIB
_ADAMW_BYTES = 8  # two fp32 moments per parameter
_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}


def training_memory(workload: Workload, strategy: Strategy, device: str) -> Estimate:
    """Peak memory of one rank on `device` ("cpu" or "cuda"), in named parts.

    Raises:
        UsageError: the strategy is not covered yet (today: single and DDP).
    """
    if strategy.world_size != strategy.dp_replicate:
        raise UsageError(
            f"Memory of {strategy.name!r} cannot be estimated yet; single and ddp can."
        )
    count = workload.model.parameters
    parts = {
        "parameters": 4 * count,
        "gradients": 4 * count,
        "optimizer states": _ADAMW_BYTES * count,
    }
    if strategy.dp_replicate > 1:
        parts["DDP buckets"] = 4 * count  # gradients are copied into buckets: no bucket views
    parts["activations"] = block_activation_bytes(workload) * workload.model.layers
    parts["logits and loss"] = logits_bytes(workload)
    if device == "cuda":
        parts["CUDA context"] = CUDA_CONTEXT_BYTES
        if strategy.world_size > 1:
            parts["NCCL"] = NCCL_BYTES
    else:
        parts["Python and PyTorch"] = CPU_CONTEXT_BYTES
    return Estimate(
        parts=parts,
        assumptions=(
            "AdamW, fp32 master weights and gradients, no recompute, SDPA attention",
            "context: 364 MiB CPU / 700 MiB CUDA + 400 MiB NCCL, not measured on this host",
        ),
    )


def block_activation_bytes(workload: Workload) -> int:
    """Bytes one block saves for backward: norms, q/k/v/attention out, residuals, MLP.

    Counted in elements per token: 2 norm inputs, 2 norm outputs, q, k, v, rotated q and k, the
    attention's output (10 h), and the MLP's inner tensor before and after its activation (2 m);
    attention keeps 4 bytes of logsumexp per head. Scores are not stored (SDPA).
    """
    tokens = workload.seq_len * workload.micro_batch
    size = _BYTES[workload.precision]
    model = workload.model
    return tokens * (size * (10 * model.hidden + 2 * model.mlp_hidden) + 4 * model.heads)


def logits_bytes(workload: Workload) -> int:
    """Logits, their fp32 log-softmax and the gradient of both (8 or 12 bytes per element)."""
    tokens = workload.seq_len * workload.micro_batch
    return tokens * workload.model.vocab * (_BYTES[workload.precision] + 8)
