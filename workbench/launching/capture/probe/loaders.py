"""The batch size of the loader that trains, and another one for a second measurement.

Every DataLoader that collates, also one of a stream, builds its batches with a ``BatchSampler``:
its constructor is the one place through which a batch size goes. It may lie in samplers around it
(Accelerate's shards).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


def actions(seen: int, wanted: int) -> dict[str, Callable[[Any], None]]:
    """By module: let every batch sampler made with `seen` make batches of `wanted`."""

    def patch(module: Any) -> None:
        construct = module.BatchSampler.__init__

        @functools.wraps(construct)
        def init(self: Any, sampler: Any, batch_size: Any, *args: Any, **kwargs: Any) -> None:
            construct(self, sampler, wanted if batch_size == seen else batch_size, *args, **kwargs)

        module.BatchSampler.__init__ = init

    return {"torch.utils.data.sampler": patch}


def batch_size(recorder: Any) -> int | None:
    """Of the loader that trains; None without one, or where it does not collate."""
    feeds: dict[Any, Any] = {} if recorder.loaders is None else recorder.loaders.feeds()
    for loader, feed in feeds.items():
        if not feed.trains:
            continue
        inner: Any = getattr(loader, "batch_sampler", None)
        while getattr(inner, "batch_sampler", None) is not None:
            inner = inner.batch_sampler
        size = getattr(inner, "batch_size", None)
        if isinstance(size, int):
            return size
    return None
