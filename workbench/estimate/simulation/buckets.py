"""DDP's gradient buckets, which its C++ reducer allocates outside every Python mode.

The reducer itself touches data pointers and cannot run on fake tensors, so its allocations are made
here: 25 MiB buckets (the first 1 MiB) in the order in which gradients become ready, each gradient
copied into its place; with ``gradient_as_bucket_view`` the gradient then is that place.
"""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.tensor import DTensor

from workbench.estimate.simulation.trace import GRADIENTS
from workbench.estimate.simulation.tracker import Tracker

FIRST_BUCKET, BUCKET = 1 << 20, 25 << 20


class Buckets:
    """Allocates the buckets and installs the copies into them."""

    def __init__(
        self, parameters: list[Any], tracker: Tracker, *, views: bool, bucket_bytes: int = BUCKET
    ) -> None:
        self.sync = True
        self._storage: list[Any] = []
        pending: dict[Any, list[Any]] = {}  # a bucket holds one dtype
        caps: dict[Any, int] = {}
        for parameter in reversed(parameters):
            group = pending.setdefault(parameter.dtype, [])
            group.append(parameter)
            size = sum(_local(each).numel() * each.element_size() for each in group)
            if size >= caps.get(parameter.dtype, min(FIRST_BUCKET, bucket_bytes)):
                self._bucket(pending.pop(parameter.dtype), tracker, views=views)
                caps[parameter.dtype] = bucket_bytes
        for group in pending.values():
            self._bucket(group, tracker, views=views)

    def _bucket(self, parameters: list[Any], tracker: Tracker, *, views: bool) -> None:
        total = sum(_local(parameter).numel() for parameter in parameters)
        storage = torch.empty(total, dtype=parameters[0].dtype, device=parameters[0].device)
        tracker.add(storage, GRADIENTS)
        self._storage.append(storage)
        offset = 0
        for parameter in parameters:
            local = _local(parameter)
            place = storage[offset : offset + local.numel()].view(local.shape)
            offset += local.numel()
            if views and not isinstance(parameter, DTensor):
                parameter.register_post_accumulate_grad_hook(self._redirect(place))

    def _redirect(self, place: Any) -> Any:
        def hook(parameter: Any) -> None:
            if self.sync and parameter.grad is not place:
                place.copy_(parameter.grad)
                parameter.grad = place

        return hook


def _local(tensor: Any) -> Any:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
