"""What stands behind the blocks: head and loss, as transformers computes them."""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from workbench.describe import Model, Workload


class MaskedHead(nn.Module):
    """BERT's head: dense, GELU, norm, then the matrix that it may share with the embedding."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.dense = nn.Linear(model.hidden, model.hidden)
        self.norm = nn.LayerNorm(model.hidden)
        self.decoder = nn.Linear(model.hidden, model.vocab, bias=model.head_bias)

    def forward(self, hidden: Any) -> Any:
        """Logits of every token."""
        return self.decoder(self.norm(functional.gelu(self.dense(hidden))))


def build_head(model: Model) -> nn.Module:
    """The head of `model`, its matrix not yet tied to the embedding."""
    if model.mlm_head:
        return MaskedHead(model)
    return nn.Linear(model.hidden, model.vocab, bias=model.head_bias or model.kind == "vision")


class Loss(nn.Module):
    """Cross entropy over all tokens at once or over chunks whose logits are computed twice."""

    def __init__(self, workload: Workload) -> None:
        super().__init__()
        self.shift = workload.model.kind == "decoder"
        self.upcast = workload.kernels.logits_fp32
        self.returned_wide = workload.kernels.fp32_logits_returned
        self.chunks = workload.loss_chunks if workload.loss.startswith("chunked") else 1
        self.again = workload.loss == "chunked"

    def forward(self, head: Any, hidden: Any, labels: Any) -> tuple[Any, Any]:
        """(loss, logits); the logits are None when they never exist as a whole."""
        if self.shift:
            labels = functional.pad(labels, (0, 1), value=-100)[..., 1:].contiguous()
        if self.chunks == 1:
            logits = head(hidden)
            logits = logits.float() if self.returned_wide else logits
            return self._cross_entropy(logits, labels) / labels.numel(), logits
        total = torch.zeros((), dtype=torch.float32)
        pieces = zip(
            hidden.flatten(0, -2).chunk(self.chunks),
            labels.flatten().chunk(self.chunks),
            strict=True,
        )
        if not self.again:  # torchtune: low-precision logits of all chunks, then the softmaxes
            logits = [(head(piece), target) for piece, target in pieces]
            for chunk, target in logits:
                total = total + self._cross_entropy(chunk, target)
            return total / labels.numel(), [chunk for chunk, _ in logits]
        for piece, target in pieces:
            total = total + checkpoint(
                self._chunk, head, piece, target, use_reentrant=False, preserve_rng_state=False
            )
        return total / labels.numel(), None

    def _chunk(self, head: Any, hidden: Any, labels: Any) -> Any:
        return self._cross_entropy(head(hidden), labels)

    def _cross_entropy(self, logits: Any, labels: Any) -> Any:
        logits = logits.float() if self.upcast else logits
        return functional.cross_entropy(
            logits.flatten(0, -2), labels.flatten(), ignore_index=-100, reduction="sum"
        )
