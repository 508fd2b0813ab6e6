"""The table of contents of a checkpoint by torch.distributed.checkpoint, read without torch.

It is a pickle (``.metadata``) and may be anybody's: names of torch's own descriptions become plain
records, every other name is refused, so nothing of it runs.
"""

from __future__ import annotations

import io
import json
import math
import pickle
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

TABLE = ".metadata"
_RECORD = "options.json"  # of the recipes: what the run was, and the weights of its whole model
_MAX_BYTES = 256 << 20
_MODULES = {
    "torch.distributed.checkpoint.metadata",
    "torch.distributed.checkpoint.filesystem",
}
_PATHS = {"pathlib", "pathlib._local"}
_MOMENTS = ("exp_avg", "exp_avg_sq", "step")  # of AdamW, beside every weight of a recipe
# What wrappers add to names. The recipes' names come from the tree of modules and have none.
_OF_WRAPPERS = ("_checkpoint_wrapped_", "_fsdp_wrapped_", "_orig_mod")


class TableError(ValueError):
    """The table of contents cannot be read."""


class Chunk:
    """Part of a tensor: where it begins in each dimension, and its extent."""

    def __init__(self, offsets: tuple[int, ...], sizes: tuple[int, ...]) -> None:
        self.offsets, self.sizes = offsets, sizes


class Table:
    """Tensors by name, with the parts that were written and where each part lies."""

    def __init__(self, sizes: dict[str, tuple[int, ...]], chunks: dict[str, list[Chunk]]) -> None:
        self.sizes, self.chunks = sizes, chunks
        self.places: dict[tuple[str, tuple[int, ...]], tuple[str, int, int]] = {}
        """Name and offsets of a part -> file, first byte, number of bytes."""


def read_table(folder: Path) -> Table:
    """The table of contents of a checkpoint.

    Raises:
        TableError: it is missing, damaged, or names what does not belong into one.
    """
    try:
        with (folder / TABLE).open("rb") as file:
            metadata: Any = _Unpickler(io.BytesIO(file.read(_MAX_BYTES))).load()
        return _table(metadata)
    except Exception as error:  # a pickle that was damaged may fail in any way
        raise TableError(f"{TABLE} cannot be read") from error


def why_unreadable(folder: Path) -> str:
    """Why another layout could not read the checkpoint, as the end of a sentence; "" = it could.

    Every part of every tensor must lie in a file that is long enough, and a recipe's checkpoint
    must have each weight of its model, by the model's own name and with AdamW's state beside it.
    """
    try:
        table = read_table(folder)
    except TableError as error:
        return str(error)
    return _missing_bytes(folder, table) or _wrong_names(folder, table)


def _missing_bytes(folder: Path, table: Table) -> str:
    ends = Counter[str]()
    for name, size in table.sizes.items():
        parts = table.chunks[name]
        for part in parts:
            place = table.places.get((name, part.offsets))
            if place is None:
                return f"{TABLE} does not say where a part of {name} lies"
            file, first, count = place
            ends[file] = max(ends[file], first + count)
        if sum(math.prod(part.sizes) for part in parts) < math.prod(size):
            return f"a part of {name} was not written"
    return next(filter(None, (_shorter(folder, file, end) for file, end in ends.items())), "")


def _shorter(folder: Path, file: str, end: int) -> str:
    if Path(file).is_absolute() or ".." in Path(file).parts:
        return f"{TABLE} lists an impossible file: {file!r}"
    path = folder / file
    if not path.is_file():
        return f"{file} is missing"
    short = path.stat().st_size < end
    return f"{file} is cut short: {TABLE} names bytes up to {end:,}" if short else ""


def _wrong_names(folder: Path, table: Table) -> str:
    record = _record(folder)
    if record is None or record.get("format") != "portable":
        return ""  # of someone's own script: its names are its own
    for name in table.sizes:
        if any(mark in part for part in name.split(".") for mark in _OF_WRAPPERS):
            return f"{name} has the name of a wrapper in it: only the layout that wrote it reads it"
    weights = record.get("weights")  # a release before kept no list of them
    named = cast("dict[str, Any]", weights) if isinstance(weights, dict) else dict[str, Any]()
    return next(filter(None, (_wrong(table, name, shape) for name, shape in named.items())), "")


def _wrong(table: Table, name: str, shape: object) -> str:
    """What is wrong with one weight that should be there."""
    size = table.sizes.get(name)
    if size is None:
        return f"the weight {name} is not in it"
    if list(size) != shape:
        return f"the weight {name} has the shape {list(size)} instead of {shape}"
    missing = [key for key in _MOMENTS if f"{name}.{key}" not in table.sizes]
    return f"the optimizer's {missing[0]} of {name} is not in it" if missing else ""


def _record(folder: Path) -> dict[str, Any] | None:
    try:
        record = json.loads((folder / _RECORD).read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return cast("dict[str, Any]", record) if isinstance(record, dict) else None


def _table(metadata: Any) -> Table:
    tensors = cast("Mapping[str, Any]", metadata.state_dict_metadata)
    described = {str(name): value for name, value in tensors.items() if hasattr(value, "chunks")}
    table = Table(
        {name: _numbers(value.size) for name, value in described.items()},
        {name: list(_chunks(value.chunks)) for name, value in described.items()},
    )
    for index, info in cast("Mapping[Any, Any]", metadata.storage_data).items():
        if index.offset is not None:
            place = (str(info.relative_path), int(info.offset), int(info.length))
            table.places[str(index.fqn), _numbers(index.offset)] = place
    return table


def _chunks(entries: Sequence[Any]) -> Iterator[Chunk]:
    for entry in entries:
        yield Chunk(_numbers(entry.offsets), _numbers(entry.sizes))


def _numbers(values: Sequence[Any]) -> tuple[int, ...]:
    return tuple(int(value) for value in values)


class _Description:
    """A record of torch's: attributes as they were pickled."""

    def __init__(self, *values: Any) -> None:
        self.values = values

    def __setstate__(self, state: Any) -> None:
        """Attributes by name; what has another form is of no interest here."""
        if isinstance(state, dict):
            vars(self).update(cast("dict[str, Any]", state))


def _joined(*parts: str) -> str:
    return "/".join(parts)


_UNCALLED = {
    ("torch.serialization", "_get_layout"),
    ("builtins", "getattr"),  # a member of an enumeration, as Python 3.11.0 to 3.11.3 pickle it
}


class _Unpickler(pickle.Unpickler):
    """Makes records of torch's descriptions and refuses every other name."""

    def find_class(self, module: str, name: str, /) -> Any:
        """What stands for a name of the pickle."""
        if module in _MODULES and "." not in name:
            return _Description
        if module in _PATHS and name in {"PosixPath", "PurePosixPath", "Path"}:
            return _joined
        if (module, name) == ("torch", "Size"):
            return tuple
        if (module, name) == ("collections", "OrderedDict"):
            return dict
        if module == "torch" or (module, name) in _UNCALLED:
            return _Description  # dtypes, layouts, devices: never called for what they do
        raise pickle.UnpicklingError(f"a table of contents names {module}.{name}")
