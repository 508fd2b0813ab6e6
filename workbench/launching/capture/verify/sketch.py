"""A tensor in a few numbers: a hash of its bytes, its norm, and projections that add up.

Two tensors with the same hash are equal. The projections are sums with signs that are a function of
an element's place in the whole tensor: the difference of two tensors has a norm of about the root
mean square of the differences of their projections, and those of shards add up to those of the
whole.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from typing import Any

import torch

_PROJECTIONS = 4
_BYTES_AT_ONCE = 1 << 24
_MOST = 1 << 20  # elements that the projections of one tensor look at
_MIX = (0x9E3779B97F4A7C15 - (1 << 64), 0x5851F42D4C957F2D)


def sketch(tensor: Any) -> dict[str, Any]:
    """What is kept of one tensor, or of this rank's piece of it."""
    local, shape, offset = _piece(tensor.detach())
    flat = local.reshape(-1)
    plain = flat.to(torch.float64)
    facts: dict[str, Any] = {
        "hash": digest(local),
        "norm": float(plain.norm()) if flat.numel() else 0.0,
        "spread": float(plain.std()) if flat.numel() > 1 else 0.0,
        "shape": list(shape),
        "dtype": str(local.dtype).removeprefix("torch."),
        "projections": _projections(plain, tuple(local.shape), shape, offset),
    }
    if tuple(local.shape) != tuple(shape):
        facts |= {"offset": list(offset), "local": list(local.shape)}
    return facts


def sketches(named: Mapping[str, Any]) -> dict[str, Any]:
    """Of several tensors by name."""
    return {name: sketch(value) for name, value in named.items()}


def local_part(tensor: Any) -> Any:
    """This rank's piece of a sharded tensor; any other one as it is."""
    return tensor.to_local() if hasattr(tensor, "placements") else tensor


def digest(tensor: Any) -> int:
    """A hash of the bytes of a tensor."""
    flat, value = tensor.detach().cpu().contiguous().reshape(-1), 0
    for piece in flat.view(torch.uint8).split(_BYTES_AT_ONCE):
        # A copy: numpy() fixes the size of a storage, and FSDP changes that of its own.
        value = zlib.crc32(memoryview(piece.clone().numpy()), value)
    return value


def _piece(tensor: Any) -> tuple[Any, Any, Any]:
    """This rank's piece, the shape of the whole, and where in it the piece begins."""
    if not hasattr(tensor, "placements"):
        return tensor, tensor.shape, (0,) * tensor.dim()
    from torch.distributed.tensor._utils import (  # noqa: PLC0415
        compute_local_shape_and_global_offset as place,
    )

    local = tensor.to_local()
    local = local.wait() if hasattr(local, "wait") else local
    _, offset = place(tensor.shape, tensor.device_mesh, tensor.placements)
    return local, tensor.shape, offset


def _projections(flat: Any, local: Any, shape: Any, offset: Any) -> list[float]:
    """Sums of the elements with signs that are a function of their places in the whole."""
    if not flat.numel():
        return [0.0] * _PROJECTIONS
    places = torch.zeros((), dtype=torch.int64)
    stride = 1
    for size, full_size, first in reversed(list(zip(local, shape, offset, strict=True))):
        own = (torch.arange(size) + first) * stride
        places = (own.reshape(-1, *[1] * places.dim()) + places) if places.dim() else own
        stride *= full_size
    places = places.reshape(-1)
    each = 1 + math.prod(shape) // _MOST
    values = flat.cpu()
    if each > 1:
        chosen = places % each == 0
        places, values = places[chosen], values[chosen]
    mixed = (places + 1) * _MIX[0]
    mixed = (mixed ^ (mixed >> 29)) * _MIX[1]
    return [
        float((values * (1 - 2 * ((mixed >> (40 + 5 * number)) & 1))).sum())
        for number in range(_PROJECTIONS)
    ]


def added(first: list[float] | None, second: list[float]) -> list[float]:
    """Projections of a sum."""
    return second if first is None else [a + b for a, b in zip(first, second, strict=True)]
