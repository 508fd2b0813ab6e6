"""How much a batch holds, and a fingerprint of what: of tensors on the CPU, never waiting."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, cast

_MAX_MASK = 1 << 20  # elements of an attention mask that are still cheap to add up
_MAX_DEPTH = 4  # of tuples and mappings in each other
_VALUES, _SUMMED, _TENSORS = 64, 1 << 14, 4  # that a fingerprint looks at


class Batch(NamedTuple):
    """What one batch holds, or several of one step together; None where it does not tell."""

    tokens: int | None = None
    samples: int | None = None
    fingerprint: int | None = None


NOTHING = Batch()
_PLAIN = {tuple, list}
_NUMBERS = {int, float, str}


def measure(batch: Any, *, fingerprint: bool) -> Batch:
    """Count one batch as a DataLoader hands it over."""
    first: Any = batch[0] if type(batch) in _PLAIN and batch else None
    if not fingerprint and hasattr(first, "untyped_storage") and first.dim():
        return Batch(None, int(first.shape[0]))  # by far the most usual
    leaf = next(_tensors(batch), None)
    samples = None if leaf is None else int(leaf.shape[0])
    return Batch(_tokens(batch), samples, _fingerprint(batch) if fingerprint else None)


def batch_of_tokens(tokens: Any) -> Batch:
    """The batch of a step whose tokens the script itself logs."""
    is_count = isinstance(tokens, int | float) and 0 < tokens < math.inf
    return Batch(int(tokens)) if is_count else NOTHING


def together(batch: Batch, other: Batch) -> Batch:
    """The batches of one step: counts add up, fingerprints continue in their order."""
    if batch is NOTHING:
        return other
    mark = other.fingerprint if batch.fingerprint is None else batch.fingerprint
    if batch.fingerprint is not None and other.fingerprint is not None:
        mark = zlib.crc32(b"%d %d" % (batch.fingerprint, other.fingerprint))
    return Batch(_sum(batch.tokens, other.tokens), _sum(batch.samples, other.samples), mark)


def _sum(first: int | None, second: int | None) -> int | None:
    return second if first is None else first if second is None else first + second


def _tensors(value: Any, depth: int = _MAX_DEPTH) -> Iterator[Any]:
    """The tensors of a batch with a dimension for its samples, in their order."""
    if hasattr(value, "untyped_storage"):
        if value.dim():
            yield value
    elif depth and isinstance(value, Mapping):
        for item in cast("Mapping[Any, Any]", value).values():
            yield from _tensors(item, depth - 1)
    elif depth and isinstance(value, (tuple, list)):
        for inner in cast("list[Any]", value)[:_TENSORS]:
            yield from _tensors(inner, depth - 1)


def _tokens(batch: Any) -> int | None:
    """Tokens of a batch that names them: its attention mask's ones, else all its input ids."""
    if not isinstance(batch, Mapping):
        return None
    named: Any = batch  # pyright: ignore[reportUnknownVariableType]
    ids, mask = named.get("input_ids"), named.get("attention_mask")
    if mask is not None and not mask.is_cuda and mask.dim() == 2 and mask.numel() <= _MAX_MASK:
        return int(mask.sum())
    return None if ids is None else int(ids.numel())


def _fingerprint(batch: Any) -> int | None:
    """Of values spread over the batch's first tensors; None where one is not on the CPU."""
    mark = None
    for number, tensor in enumerate(_tensors(batch)):
        if number == _TENSORS:
            break
        if tensor.device.type != "cpu":
            return None
        flat = tensor.detach().reshape(-1)
        spread = flat[:: max(1, flat.numel() // _VALUES)][:_VALUES].tolist()
        text = f"{tuple(tensor.shape)} {spread} {flat[:_SUMMED].double().sum().item()}"
        mark = zlib.crc32(text.encode(), mark or 0)
    return mark


def data_mark(data: Any) -> int | None:
    """Of a data set that can be read without running the script's code; None = not known.

    It tells whether two ranks hold the same one, or a part each that the script gave them.
    """
    try:
        fingerprint = getattr(data, "_fingerprint", None)  # of Hugging Face's datasets
        if isinstance(fingerprint, str):
            return zlib.crc32(fingerprint.encode())
        indices = getattr(data, "indices", None)  # of a Subset
        if isinstance(indices, (list, range)) and hasattr(data, "dataset"):
            return zlib.crc32(_ends(indices).encode(), data_mark(data.dataset) or 0)
        tensors = getattr(data, "tensors", None)  # of a TensorDataset
        if type(data) in _PLAIN or hasattr(data, "untyped_storage"):
            tensors = (data,)
        if type(tensors) is not tuple:
            return None
        rows = cast("tuple[Any, ...]", tensors)[0]  # IndexError if empty, here and below
        if type(rows) in _PLAIN and type(rows[0]) in _NUMBERS:
            return zlib.crc32(_ends(rows).encode())
        first = _fingerprint([rows[0], rows[-1]])
        return None if first is None else zlib.crc32(b"%d" % len(rows), first)
    except Exception:
        return None


def _ends(values: Any) -> str:
    return f"{len(values)} {list(values[:_VALUES])} {list(values[-_VALUES:])}"
