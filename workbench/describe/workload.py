"""What is trained: the model's shape and the work per optimizer step."""

from __future__ import annotations

from dataclasses import dataclass

from workbench.errors import UsageError

PRECISIONS = ("fp32", "bf16", "fp16")


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """Shape of a decoder-only transformer."""

    name: str
    """What people call it."""
    parameters: int
    """Exact number of trainable parameters, embeddings included."""
    layers: int
    """Transformer blocks."""
    hidden: int
    """Width of the residual stream."""
    heads: int
    """Attention heads per block."""
    mlp_hidden: int
    """Inner width of the MLP."""
    vocab: int
    """Vocabulary size = width of the logits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One optimizer step of a training job, per data-parallel rank where not said otherwise."""

    model: Model
    """The model that is trained."""
    seq_len: int
    """Tokens per sequence."""
    micro_batch: int
    """Sequences per forward pass and rank."""
    accumulate: int = 1
    """Micro-batches per optimizer step (gradient accumulation)."""
    precision: str = "fp32"
    """Compute precision: fp32, bf16 or fp16 (autocast; master weights stay fp32)."""
    optimizer: str = "adamw"
    """Optimizer; AdamW keeps two fp32 moments per parameter."""

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise UsageError(f"Unknown precision {self.precision!r}. Use {', '.join(PRECISIONS)}.")
        for field in ("seq_len", "micro_batch", "accumulate"):
            if getattr(self, field) < 1:
                raise UsageError(f"{field} must be at least 1, not {getattr(self, field)}.")

    def tokens_per_step(self, data_ranks: int) -> int:
        """Tokens per optimizer step over `data_ranks` data-parallel ranks (the global batch)."""
        return self.seq_len * self.micro_batch * self.accumulate * data_ranks
