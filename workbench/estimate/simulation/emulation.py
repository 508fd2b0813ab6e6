"""Where CPU tensors behave unlike CUDA's: autocast's list of fp32 operations, and dropout."""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportMissingParameterType=false, reportUnknownParameterType=false, reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

# torch/aten/src/ATen/autocast_mode.h, AT_FORALL_FP32 and AT_FORALL_FP32_SET_OPT_DTYPE: what CUDA
# autocast runs in fp32 and CPU autocast leaves in bf16.
_FP32 = frozenset(
    {
        *("layer_norm", "group_norm", "rms_norm", "norm", "softmax", "log_softmax", "softmin"),
        *("nll_loss", "cross_entropy_loss", "mse_loss", "l1_loss", "smooth_l1_loss", "nll_loss_nd"),
        *("kl_div", "cosine_similarity", "cosine_embedding_loss", "pdist", "cdist", "renorm"),
        *("pow", "exp", "expm1", "log", "log10", "log2", "log1p", "rsqrt", "reciprocal", "tan"),
        *("__pow__", "__rpow__", "__rdiv__", "__rtruediv__", "acos", "asin", "cosh", "sinh"),
        *("erfinv", "prod", "cumsum", "cumprod", "sum", "softplus", "_softmax", "_log_softmax"),
        *("soft_margin_loss", "triplet_margin_loss", "poisson_nll_loss", "huber_loss"),
        *("binary_cross_entropy_with_logits", "hinge_embedding_loss", "margin_ranking_loss"),
    }
)
_LOW = (torch.bfloat16, torch.float16)


class CudaBehaviour(TorchFunctionMode):
    """Casts to fp32 where CUDA autocast would, and drops out with a mask of one byte."""

    entered = 0  # how often it is active, so that checkpoints know

    def __enter__(self) -> Any:
        CudaBehaviour.entered += 1
        return super().__enter__()

    def __exit__(self, *details: object) -> None:
        CudaBehaviour.entered -= 1
        super().__exit__(*details)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Intercept one call of torch's Python API."""
        del types
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in _FP32 and torch.is_autocast_enabled("cpu"):
            args = tuple(_single(item) for item in args)
        elif name == "dropout" and len(args) >= 1:
            values = dict(zip(("input", "p", "training"), args, strict=False)) | kwargs
            rate, training = values.get("p", 0.5), values.get("training", True)
            if not training or not rate:
                return values["input"]
            return torch.native_dropout(values["input"], rate, train=True)[0]
        return func(*args, **kwargs)


class _GroupedMatmul(torch.autograd.Function):
    """Allocates what ``grouped_mm`` does; its fake kernel only takes bf16."""

    @staticmethod
    def forward(context: Any, rows: Any, weights: Any) -> Any:
        """One output row per input row, whichever expert it goes to."""
        context.save_for_backward(rows, weights)
        return rows.new_empty(rows.shape[0], weights.shape[-1])

    @staticmethod
    def backward(context: Any, gradient: Any) -> Any:  # type: ignore[override]
        """Gradients of rows and weights."""
        del gradient
        rows, weights = context.saved_tensors
        return torch.empty_like(rows), torch.empty_like(weights)


def emulating_recompute(generator: Any) -> Any:
    """Wrap checkpoint's generator: what emulates CUDA in forward also does in the recomputation.

    Function modes are off in the autograd engine, where blocks run again.
    """

    def wrapped(function: Any, preserve: Any, context_fn: Any, *rest: Any, **more: Any) -> Any:
        def contexts() -> Any:
            forward, again = context_fn()
            return forward, _emulating(again)

        active = CudaBehaviour.entered > 0
        return generator(function, preserve, contexts if active else context_fn, *rest, **more)

    return wrapped


@contextmanager
def _emulating(inner: Any) -> Generator[None]:
    with CudaBehaviour(), inner:
        yield


def grouped_matmul(rows: Any, weights: Any, offsets: Any = None, **_options: Any) -> Any:
    """Replace transformers' dispatch between grouped kernels."""
    del offsets
    return _GroupedMatmul.apply(rows.to(weights.dtype), weights)


def _single(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.dtype in _LOW:
        return value.float()
    return value
