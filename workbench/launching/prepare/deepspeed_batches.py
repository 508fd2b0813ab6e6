"""A DeepSpeed file among a script's arguments: whether its batches multiply on these ranks.

DeepSpeed asserts that train_batch_size = train_micro_batch_size_per_gpu x
gradient_accumulation_steps x data-parallel ranks, once every rank has loaded the script
(deepspeed/runtime/config.py, _batch_assertion, 0.19.8). What is missing or "auto" it works out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from workbench.errors import UsageError
from workbench.store.files import read_json
from workbench.trainer_configs.fields import unequal_batches

_FLAGS = ("--deepspeed", "--deepspeed_config", "--deepspeed-config", "--ds_config", "--ds-config")
_KEYS = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")


def check_batches(arguments: Sequence[str], folder: Path, ranks: int) -> None:
    """Refuse a file of DeepSpeed that the ranks would refuse.

    Args:
        arguments: Of the script.
        folder: Where it is started.
        ranks: Data-parallel ones.

    Raises:
        UsageError: with the right product.
    """
    for path in _files(arguments, folder):
        check_batches_of(path, read_json(path) or {}, ranks)


def check_batches_of(path: Path, values: Mapping[str, Any], ranks: int) -> None:
    """The same for the values of one file. Raises UsageError: as `check_batches`."""
    stated = [values.get(key) for key in _KEYS]
    batch, micro, accumulate = stated
    if all(type(value) is int and value > 0 for value in stated) and (
        problem := unequal_batches(batch, micro, accumulate, ranks)  # pyright: ignore[reportArgumentType]
    ):
        raise UsageError(f"{path}: train_batch_size is {problem}")


def _files(arguments: Sequence[str], folder: Path) -> Iterator[Path]:
    for word, following in pairwise([*arguments, ""]):
        flag, has_value, value = word.partition("=")
        if flag in _FLAGS and (path := folder / (value if has_value else following)).is_file():
            yield path
