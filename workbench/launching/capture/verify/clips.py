"""Each clipping of gradients: what they were, and whether a scaler's factor was in them."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable
from typing import Any

import torch


class Clips:
    """Watches ``torch.nn.utils.clip_grad_norm_`` and ``clip_grad_value_``, and GradScaler."""

    def __init__(self) -> None:
        self._seen: list[dict[str, Any]] = []
        self._scale = 1.0  # that the gradients of this step still have
        for name, kind in (("clip_grad_norm_", "norm"), ("clip_grad_value_", "value")):
            observed = self._observed(getattr(torch.nn.utils, name), kind)
            for module in (torch.nn.utils, torch.nn.utils.clip_grad):
                setattr(module, name, observed)
        self._watch_scaler(torch.amp.GradScaler)

    def drain(self) -> list[dict[str, Any]]:
        """Those of the step that ends."""
        seen, self._seen, self._scale = self._seen, [], 1.0
        return seen

    def _observed(self, clip: Callable[..., Any], kind: str) -> Callable[..., Any]:
        @functools.wraps(clip)
        def observed(parameters: Any, *args: Any, **kwargs: Any) -> Any:
            if not isinstance(parameters, torch.Tensor):
                parameters = list(parameters)  # it may be a generator
            with contextlib.suppress(Exception):
                self._note(parameters, kind)
            return clip(parameters, *args, **kwargs)

        return observed

    def _note(self, parameters: Any, kind: str) -> None:
        clipped = [parameters] if isinstance(parameters, torch.Tensor) else parameters
        gradients = [parameter.grad for parameter in clipped if parameter.grad is not None]
        if not gradients or any(hasattr(gradient, "placements") for gradient in gradients):
            return  # shards of DTensor: torch adds their norms up over the ranks
        squares = [float(gradient.detach().double().pow(2).sum()) for gradient in gradients]
        self._seen.append(
            {
                "kind": kind,
                "norm": math.sqrt(sum(squares)),
                "elements": sum(gradient.numel() for gradient in gradients),
                "scale": self._scale,
            }
        )

    def _watch_scaler(self, owner: Any) -> None:
        scale, unscale = owner.scale, owner.unscale_

        @functools.wraps(scale)
        def scaled(scaler: Any, outputs: Any) -> Any:
            result = scale(scaler, outputs)
            with contextlib.suppress(Exception):
                self._scale = float(scaler.get_scale()) if scaler.is_enabled() else 1.0
            return result

        @functools.wraps(unscale)
        def unscaled(scaler: Any, *args: Any, **kwargs: Any) -> Any:
            self._scale = 1.0
            return unscale(scaler, *args, **kwargs)

        owner.scale, owner.unscale_ = scaled, unscaled
