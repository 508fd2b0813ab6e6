"""Which samples a rank reads: their places in the data set, and a hash of what each holds."""

from __future__ import annotations

import collections
import contextlib
import functools
import os
import sys
import zlib
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from ..loaders import sampling  # noqa: TID252
from .sketch import digest

_MOST_SAMPLES = 512  # of one batch
_MOST_FETCHES = 1024
_MOST_LOADERS = 16


class Reading:
    """All batches that the training process took from its loaders."""

    def __init__(self) -> None:
        self.loaders: list[dict[str, Any]] = []
        self.fetches: list[dict[str, Any]] = []
        self._numbers: dict[tuple[int, int], int] = {}
        self._loader_objects: list[Any] = []
        self._indices: dict[int, list[int]] = {}  # by the hash of a tensor of the batch
        self._last: dict[str, Any] | None = None
        self.made: list[Any] = []  # by the passes of this step; kept, so that no address is reused
        self._owner = os.getpid()
        module: Any = sys.modules["torch.utils.data.dataloader"]
        self._watch_iterators(module._BaseDataLoaderIter)  # noqa: SLF001  (no public place)
        self._watch_loader(module.DataLoader)

    def _watch_loader(self, owner: Any) -> None:
        begin = owner.__iter__

        @functools.wraps(begin)
        def iterate(loader: Any) -> Any:
            iterator = begin(loader)
            with contextlib.suppress(Exception):
                self._begun(loader, iterator)
            return iterator

        owner.__iter__ = iterate

    def _watch_iterators(self, owner: Any) -> None:
        index, fetch = owner._next_index, owner.__next__  # noqa: SLF001

        @functools.wraps(index)
        def next_index(iterator: Any) -> Any:
            chosen = index(iterator)
            ahead = iterator.__dict__.setdefault("_workbench_chosen", collections.deque())
            ahead.append(chosen)
            return chosen

        @functools.wraps(fetch)
        def following(iterator: Any) -> Any:
            batch = fetch(iterator)
            with contextlib.suppress(Exception):
                ahead = iterator.__dict__.get("_workbench_chosen")
                self._fetched(iterator, ahead.popleft() if ahead else None, batch)
            return batch

        owner._next_index, owner.__next__ = next_index, following  # noqa: SLF001

    def _begun(self, loader: Any, iterator: Any) -> None:
        sampler, _ = sampling(loader)  # a loop may make its loader again in each epoch
        key = id(loader.dataset), id(loader if sampler is None else sampler)
        number = self._numbers.get(key)
        if number is None:
            if len(self.loaders) == _MOST_LOADERS:
                return
            number = self._numbers[key] = len(self.loaders)
            self.loaders.append({**_about(loader), "passes": 0, "trains": False, "epochs": []})
            self._loader_objects.append(loader)  # its parts' ids must not be others'
        facts = self.loaders[number]
        facts["passes"] += 1
        facts["epochs"].append(getattr(sampler, "epoch", None))
        iterator._workbench_pass = number, facts["passes"]  # noqa: SLF001

    def _fetched(self, iterator: Any, chosen: Any, batch: Any) -> None:
        place = getattr(iterator, "_workbench_pass", None)
        if os.getpid() != self._owner or place is None or len(self.fetches) == _MOST_FETCHES:
            return
        number, turn = place
        tensors = _tensors(batch)
        indices = _indices(chosen, self._loader_objects[number].dataset)
        fetch = {
            "loader": number,
            "pass": turn,
            "indices": indices,
            "hash": _joined([digest(tensor) for tensor in tensors]) if tensors else None,
            "firsts": [int(tensor.shape[0]) for tensor in tensors],
            "varied": any(len(set(rows(tensor))) > 1 for tensor in tensors[:1]),
        }
        self.fetches.append(fetch)
        self._last = fetch
        if indices is not None:
            self._indices |= {digest(tensor): indices for tensor in tensors}

    def trained(self, inputs: Any) -> dict[str, Any]:
        """The samples of one forward pass of the training, by what the model is given."""
        tensors = _tensors(inputs)
        count = int(tensors[0].shape[0]) if tensors else None
        batched = [tensor for tensor in tensors if tensor.shape[0] == count]
        indices = next(
            (
                self._indices[mark]
                for tensor in tensors
                if (mark := digest(tensor)) in self._indices
            ),
            None,
        )
        drawn = indices is not None
        if self._last is not None:
            self.loaders[self._last["loader"]]["trains"] = True
            size = len(self._last["indices"] or ())
            indices = indices if indices is not None or size != count else self._last["indices"]
        parts = [rows(batch) for batch in batched]
        return {
            "samples": [_joined(list(rows)) for rows in zip(*parts, strict=True)] if parts else [],
            "indices": indices,
            "drawn": drawn,
            "shapes": [list(tensor.shape) for tensor in tensors],
            "dtypes": [str(tensor.dtype).removeprefix("torch.") for tensor in tensors],
        }

    def is_fresh(self, inputs: Any, output: Any) -> bool:
        """Whether a pass's inputs are data, not what another pass of this step has made of it."""
        addresses = {tensor.untyped_storage().data_ptr() for tensor in self.made}
        fresh = all(
            tensor.grad_fn is None and tensor.untyped_storage().data_ptr() not in addresses
            for tensor in _tensors(inputs)
        )
        self.made += [tensor.detach() for tensor in _tensors(output)]
        return fresh

    def document(self) -> dict[str, Any]:
        """What is written."""
        return {"loaders": self.loaders, "fetches": self.fetches}


def rows(tensor: Any) -> list[int]:
    """A hash of each sample of a batch."""
    return [digest(row) for row in tensor[:_MOST_SAMPLES]]


def _tensors(value: Any) -> list[Any]:
    return [
        leaf
        for leaf in tree_leaves(value if isinstance(value, (dict, list, tuple)) else _plain(value))
        if isinstance(leaf, torch.Tensor) and leaf.dim() and leaf.numel()
    ]


def _plain(value: Any) -> Any:
    """A batch of a class of its own (transformers' BatchEncoding) as a mapping."""
    return dict(value) if hasattr(value, "keys") else value


def _joined(marks: list[int]) -> int:
    return zlib.crc32(" ".join(map(str, marks)).encode())


def _indices(chosen: Any, dataset: Any) -> list[int] | None:
    """Places in the data set itself, where a subset of it is read."""
    indices: list[Any] = list(chosen) if hasattr(chosen, "__len__") else [chosen]
    if not all(isinstance(index, int) for index in indices):
        return None
    while hasattr(dataset, "indices") and hasattr(dataset, "dataset"):  # a Subset
        indices, dataset = [int(dataset.indices[index]) for index in indices], dataset.dataset
    return indices[:_MOST_SAMPLES]


def _about(loader: Any) -> dict[str, Any]:
    sampler, facts = sampling(loader)
    batches: Any = getattr(loader, "batch_sampler", None)
    while getattr(batches, "batch_sampler", None) is not None:
        batches = batches.batch_sampler
    dataset = getattr(loader, "dataset", None)
    return {
        **facts,
        "batch_size": getattr(batches, "batch_size", None),
        "drop_last": getattr(batches, "drop_last", None),
        "length": _length(dataset),
        "batches": _length(loader),
        "replicas": getattr(sampler, "num_replicas", None),
        "dataset": type(dataset).__name__,
        "dispatched": type(loader).__name__ == "DataLoaderDispatcher",
    }


def _length(value: Any) -> int | None:
    try:
        return len(value)
    except Exception:
        return None
