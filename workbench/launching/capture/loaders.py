"""Observes DataLoaders: how long the training waits for them, tokens, and how they sample.

Only the loader that was asked last before a backward pass counts as the one that trains, so that
an evaluation between two steps is not taken for waiting. Tokens and samples are counted per batch
and handed to the backward passes in the order of fetching, since some loops fetch ahead. Now and
then a batch's fingerprint goes with them, by which a reader sees which ranks train on the same data
(tensor or pipeline parallelism of the script's own), whose tokens count once.
"""

from __future__ import annotations

import collections
import functools
import os
import sys
import threading
import time
import weakref
from typing import Any

from . import failures
from .batches import NOTHING, Batch, data_mark, measure, together
from .recorder import Recorder
from .skipping import SkippedData

_MAX_AHEAD = 4096  # batches fetched and not yet trained on
_FIRST_MARKED, _MARKED_EVERY = 4, 32  # steps whose batches get a fingerprint
_MAX_NOTED = 8  # loaders whose sampling is noted
_SAMPLED_ITERATIONS = 3  # iterations after which a loader's sampling is known


class _Feed:
    """One DataLoader's account."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.batches: collections.deque[Batch] = collections.deque(maxlen=_MAX_AHEAD)
        self.collates = True  # else the dataset's own items come, whose first dimension may be any
        self.about: dict[str, Any] = {}
        self.epochs: list[int | None] = []
        self.trains = False


class Loaders:
    """All DataLoaders of this process."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._feeds: weakref.WeakKeyDictionary[Any, _Feed] = weakref.WeakKeyDictionary()
        self._training: list[_Feed] = []  # kept: a loop may make its loader again in each epoch
        self._last: _Feed | None = None
        self._fetched: set[_Feed] = set()
        self._used: Batch = NOTHING  # by the step under way
        self._noted: list[dict[str, Any]] = []
        self._batches = 0  # of the step under way
        self.skipped = SkippedData()
        self._thread = threading.get_ident()

    def mine(self) -> bool:
        """Whether the training itself asks, not a thread or process that fetches ahead."""
        return threading.get_ident() == self._thread and os.getpid() == self._recorder.owner

    def begin(self, loader: Any, iterator: Any) -> None:
        """An iteration over `loader` begins."""
        feed = self._feeds.setdefault(loader, _Feed())
        iterator._workbench_feed = feed  # noqa: SLF001 - the iterator knows its loader no longer
        feed.batches.clear()
        feed.collates = bool(getattr(loader, "_auto_collation", True))
        if len(feed.epochs) < _SAMPLED_ITERATIONS:
            sampler, feed.about = sampling(loader)
            feed.epochs.append(getattr(sampler, "epoch", None))
            if feed.trains:
                self._note_samplers()

    def fetched(self, feed: _Feed, seconds: float, batch: Any) -> None:
        """A batch came from a loader after `seconds`."""
        feed.seconds += seconds
        self._last = feed
        self._fetched.add(feed)
        if batch is not None:
            measured = measure(batch, fingerprint=_is_marked(self._recorder.steps))
            feed.batches.append(measured if feed.collates else measured._replace(samples=None))

    def used(self) -> None:
        """A backward pass begins: the loader asked last is the one that trains."""
        feed = self._last
        if feed is None:
            return
        if feed.batches:
            self._batches += 1  # a second backward pass on one batch is none more
            self._used = together(self._used, feed.batches.popleft())
        if not feed.trains:
            feed.trains = True
            if not any(_alike(feed, other) for other in self._training[:_MAX_NOTED]):
                self._training.append(feed)
            self._note_samplers()

    def take(self) -> tuple[float | None, Batch]:
        """Seconds waited and data consumed since the step before; None where nothing tells."""
        if not self._fetched:
            return None, NOTHING
        waited: float | None = None
        for feed in self._fetched:
            if feed.trains:
                waited = feed.seconds if waited is None else waited + feed.seconds
            feed.seconds = 0.0
        self._fetched.clear()
        batches, self._batches = self._batches, 0
        if self._last is not None and batches not in {0, self._last.about.get("batches_a_step")}:
            self._last.about["batches_a_step"] = batches
            self._note_samplers()
        used, self._used = self._used, NOTHING
        return waited, used

    def _note_samplers(self) -> None:
        """Note how the loaders that train do sample."""
        feeds = self._training[:_MAX_NOTED]
        samplers = [{**feed.about, **_epochs(feed.epochs)} for feed in feeds]
        if samplers != self._noted:
            self._noted = samplers
            self._recorder.note(samplers=samplers)


def _alike(feed: _Feed, other: _Feed) -> bool:
    """Whether they sample alike, if of other data (the folds of a cross-validation)."""
    return {**feed.about, "data": None} == {**other.about, "data": None}


def _is_marked(step: int) -> bool:
    """Whether batches fetched in this step get a fingerprint: the same ones on every rank."""
    return step < _FIRST_MARKED or step % _MARKED_EVERY == 0


def _epochs(seen: list[int | None]) -> dict[str, Any]:
    """Whether ``set_epoch`` was called between iterations; None before the second one."""
    epochs = [epoch for epoch in seen if epoch is not None]
    set_epoch = len(set(epochs)) == len(epochs) if len(epochs) > 1 else None
    return {"iterations": len(seen), "set_epoch": set_epoch}


def sampling(loader: Any) -> tuple[Any, dict[str, Any]]:
    """The innermost sampler of `loader`, and what is known of it."""
    batches = getattr(loader, "batch_sampler", None)
    sharded = type(batches).__name__ in {"BatchSamplerShard", "SkipBatchSampler"}
    inner: Any = batches
    while getattr(inner, "batch_sampler", None) is not None:
        inner = inner.batch_sampler
        sharded = sharded or type(inner).__name__ == "BatchSamplerShard"
    sampler = getattr(inner, "sampler", None) or getattr(loader, "sampler", None)
    replicas = getattr(sampler, "num_replicas", None)
    data = getattr(loader, "dataset", None)
    stream = batches is None or _is_stream(data)
    name = type(data).__name__
    return sampler, {
        "loader": type(loader).__name__,
        "sampler": type(sampler).__name__,
        # A stream of data may be split by itself: that is not seen from here.
        "distributed": True
        if sharded or replicas is not None or name == "IterableDatasetShard"
        else None
        if stream
        else False,
        "shuffle": getattr(sampler, "shuffle", None)
        if hasattr(sampler, "shuffle")
        else type(sampler).__name__ in {"RandomSampler", "SeedableRandomSampler"},
        "workers": getattr(loader, "num_workers", None),
        "data": data_mark(data),
    }


def _is_stream(data: Any) -> bool:
    """Whether a data set says itself what comes next: no sampler chooses among its entries."""
    kind = getattr(sys.modules.get("torch.utils.data"), "IterableDataset", None)
    return kind is not None and isinstance(data, kind)


def patch(recorder: Recorder, module: Any) -> None:
    """torch.utils.data.dataloader."""
    loaders = recorder.loaders = Loaders(recorder)
    begin, fetch = module.DataLoader.__iter__, module._BaseDataLoaderIter.__next__  # noqa: SLF001

    @functools.wraps(begin)
    def iterate(self: Any) -> Any:
        iterator = begin(self)
        try:
            if loaders.mine():
                loaders.begin(self, iterator)
        except Exception:
            return iterator
        return iterator

    @functools.wraps(fetch)
    def following(self: Any) -> Any:
        feed = getattr(self, "_workbench_feed", None)
        if feed is None or not loaders.mine():
            return fetch(self)
        begun = time.perf_counter()
        batch = None
        try:
            if loaders.skipped:
                loaders.skipped.before(feed, self, fetch)
            batch = fetch(self)
        except StopIteration:
            raise
        except Exception as error:
            failures.note(recorder, "data loader", error)
            raise
        else:
            return batch
        finally:
            _count(loaders, feed, time.perf_counter() - begun, batch)

    module.DataLoader.__iter__ = iterate
    module._BaseDataLoaderIter.__next__ = following  # noqa: SLF001


def _count(loaders: Loaders, feed: _Feed, seconds: float, batch: Any) -> None:
    try:
        loaders.fetched(feed, seconds, batch)
    except Exception:
        return
