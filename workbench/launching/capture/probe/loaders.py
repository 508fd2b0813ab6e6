"""The batches of the traced step, and another batch size for a second measurement.

Every DataLoader that collates, also one of a stream, builds its batches with a ``BatchSampler``:
its constructor is the one place through which a batch size goes. It may lie in samplers around it
(Accelerate's shards).
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any


def actions(old_size: int, new_size: int) -> dict[str, Callable[[Any], None]]:
    """By module: let every batch sampler made with `old_size` make batches of `new_size`."""

    def patch(module: Any) -> None:
        construct = module.BatchSampler.__init__

        @functools.wraps(construct)
        def init(self: Any, sampler: Any, batch_size: Any, *args: Any, **kwargs: Any) -> None:
            construct(
                self, sampler, new_size if batch_size == old_size else batch_size, *args, **kwargs
            )

        module.BatchSampler.__init__ = init

    return {"torch.utils.data.sampler": patch}


class Fetches:
    """Watches the batches of the traced step: making one is work of the loader, not of the step."""

    def __init__(self, ledger: Any) -> None:
        self.batch_size: int | None = None
        """Of the loader that was asked last; None without one, or where it does not collate."""
        self.short: int | None = None
        """Samples of its last batch, where that was the incomplete one at a dataset's end."""
        self._restore: Callable[[], None] | None = None
        module = sys.modules.get("torch.utils.data.dataloader")
        if module is not None:
            self._watch(module._BaseDataLoaderIter, ledger)  # noqa: SLF001  (no public place)

    def _watch(self, owner: Any, ledger: Any) -> None:
        fetch = owner.__next__

        @functools.wraps(fetch)
        def following(iterator: Any) -> Any:
            ledger.paused = True
            try:
                batch = fetch(iterator)
            finally:
                ledger.paused = False
            ledger.batch(batch)
            size = _size(iterator._index_sampler)  # noqa: SLF001
            if size is not None:
                self.batch_size, self.short = size, _short(batch, size)
            return batch

        def restore() -> None:
            owner.__next__ = fetch

        owner.__next__, self._restore = following, restore

    def close(self) -> None:
        """Watch no longer."""
        if self._restore is not None:
            self._restore()


def _short(batch: Any, size: int) -> int | None:
    """Samples of a batch with fewer than `size`; None where nothing shows that it is one.

    All its tensors begin with one number below `size`, and `size` stands nowhere in their shapes:
    neither a batch in the second dimension nor one of joined graphs looks like that.
    """
    from torch.utils._pytree import tree_leaves  # noqa: PLC0415  (armed before torch is there)

    shapes = [leaf.shape for leaf in tree_leaves(batch) if getattr(leaf, "shape", None)]
    firsts = {int(shape[0]) for shape in shapes}
    if len(firsts) != 1 or any(size in shape for shape in shapes):
        return None
    samples = firsts.pop()
    return samples if 0 < samples < size else None


def _size(sampler: Any) -> int | None:
    """Batch size of the innermost batch sampler: an iterator outlives its loader, not this."""
    while getattr(sampler, "batch_sampler", None) is not None:
        sampler = sampler.batch_sampler
    size = getattr(sampler, "batch_size", None)
    return size if isinstance(size, int) else None
