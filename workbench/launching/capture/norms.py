"""Gradient norms, as the script computes them for clipping; none is computed for the record."""

from __future__ import annotations

import functools
from typing import Any

from .recorder import Recorder


def patch(recorder: Recorder, torch: Any) -> None:
    """torch.nn.utils: clipping, in one call or with a norm computed before."""
    clip = torch.nn.utils.clip_grad_norm_

    @functools.wraps(clip)
    def clip_grad_norm_(*args: Any, **kwargs: Any) -> Any:
        norm = clip(*args, **kwargs)
        recorder.grad_norm(norm)
        return norm

    torch.nn.utils.clip_grad_norm_ = torch.nn.utils.clip_grad.clip_grad_norm_ = clip_grad_norm_
    scale = getattr(torch.nn.utils, "clip_grads_with_norm_", None)  # with a norm of their own
    if scale is None:
        return

    @functools.wraps(scale)
    def clip_grads_with_norm_(
        parameters: Any, max_norm: Any, total_norm: Any, *rest: Any, **named: Any
    ) -> Any:
        recorder.grad_norm(total_norm)
        return scale(parameters, max_norm, total_norm, *rest, **named)

    torch.nn.utils.clip_grads_with_norm_ = clip_grads_with_norm_


def patch_method(recorder: Recorder, owner: Any) -> None:
    """A class whose ``clip_grad_norm_`` returns the norm (Accelerator, FSDP)."""
    clip = owner.clip_grad_norm_

    @functools.wraps(clip)
    def clip_grad_norm_(self: Any, *args: Any, **kwargs: Any) -> Any:
        norm = clip(self, *args, **kwargs)
        if norm is not None:
            recorder.grad_norm(norm)
        return norm

    owner.clip_grad_norm_ = clip_grad_norm_
