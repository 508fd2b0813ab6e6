"""Whether ranks hold the same data set is told without running the script's code."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any, cast

import torch
from torch.utils.data import Dataset, Subset, TensorDataset

from workbench.launching.capture.batches import data_mark
from workbench.launching.capture.loaders import Loaders, _Feed

ROWS = torch.arange(40.0).reshape(20, 2)


class Own(Dataset[Any]):
    """A script's class, whose code may draw random numbers or read files."""

    def __len__(self) -> int:
        raise AssertionError

    def __getitem__(self, index: int) -> Any:
        raise AssertionError


def test_equal_data_sets_have_equal_marks_and_parts_of_them_have_others() -> None:
    whole = TensorDataset(ROWS)
    for same, other in (
        (ROWS, ROWS[::2]),
        (whole, TensorDataset(ROWS[1::2])),
        (Subset(whole, [0, 2, 4]), Subset(whole, [1, 3, 5])),
        ([1, 2, 3], [4, 5, 6]),
        (["a", "b"], ["c", "d"]),
        ([ROWS[0], ROWS[1]], [ROWS[2], ROWS[1]]),
    ):
        assert data_mark(same) == data_mark(same) is not None
        assert data_mark(same) != data_mark(other) is not None


def test_a_class_of_the_script_is_not_asked() -> None:
    assert data_mark(Own()) is None
    assert data_mark([]) is None
    assert data_mark(None) is None


def test_two_backward_passes_on_one_batch_are_one_batch() -> None:
    told: list[dict[str, Any]] = []
    recorder = SimpleNamespace(steps=9, owner=os.getpid(), note=lambda **facts: told.append(facts))
    loaders, feed = Loaders(cast("Any", recorder)), _Feed()
    for _ in range(2):
        loaders.fetched(feed, 0.0, [torch.ones(4, 2)])
        loaders.used()
        loaders.used()
        loaders.take()
    assert told[-1]["samplers"][0]["batches_a_step"] == 1
