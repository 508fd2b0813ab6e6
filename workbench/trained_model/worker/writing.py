"""Weights to safetensors: a shard at a time, synced, then read again and held against its hash."""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from workbench.errors import HostError, WorkbenchError
from workbench.store.room import is_full
from workbench.trained_model.worker.tensors import Tensors

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
Progress = Callable[[int, int, str], None]


def write(
    tensors: Tensors,
    names: Mapping[str, str],
    folder: Path,
    *,
    dtype: torch.dtype | None,
    shard_bytes: int,
    progress: Progress,
) -> str:
    """Write the weights `names` (new name -> name in the source) and read them again.

    Returns:
        SHA-256 over all of them by name, as the recipes' ``--fingerprint`` prints it.

    Raises:
        HostError: the disk is full.
        WorkbenchError: what was read again is not what was written.
    """
    shards = _shards(tensors, names, dtype, shard_bytes)
    total = sum(tensors.bytes(old, dtype) for old in names.values())
    done, digests, where = 0, dict[str, str](), dict[str, str]()
    for number, shard in enumerate(shards):
        file = SINGLE if len(shards) == 1 else _name(number, len(shards))
        progress(done, 2 * total, f"writing {file}")
        own = _write_shard(tensors, {new: names[new] for new in shard}, folder / file, dtype)
        size = sum(tensors.bytes(names[new], dtype) for new in shard)
        progress(done + size, 2 * total, f"verifying {file}")
        _verify(folder / file, own)
        done += 2 * size
        digests |= {new: digest for new, (digest, _) in own.items()}
        where |= dict.fromkeys(shard, file)
    if len(shards) > 1:
        index = {"metadata": {"total_size": total}, "weight_map": where}
        (folder / INDEX).write_text(json.dumps(index, indent=2), encoding="utf-8")
    progress(2 * total, 2 * total, "written")
    return fingerprint(digests)


def fingerprint(digests: Mapping[str, str]) -> str:
    """One hash of the tensors' hashes by name."""
    lines = "\n".join(f"{name} {digests[name]}" for name in sorted(digests))
    return hashlib.sha256(lines.encode()).hexdigest()


def digest(tensor: Tensor) -> str:
    """SHA-256 of a tensor's bytes."""
    numbers = tensor.detach().contiguous().flatten().view(torch.uint8).numpy()
    return hashlib.sha256(numbers.data).hexdigest()


def _write_shard(
    tensors: Tensors, names: Mapping[str, str], file: Path, dtype: torch.dtype | None
) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Hash and shape of each weight of the shard."""
    read = tensors.read(names.values())
    shard = dict[str, Tensor]()
    for new, old in names.items():
        tensor = read[old]
        shard[new] = (
            tensor.to(dtype) if dtype is not None and tensor.is_floating_point() else tensor
        )
    own = {name: (digest(tensor), tuple(tensor.shape)) for name, tensor in shard.items()}
    try:
        save_file(_unshared(shard), file, {"format": "pt"})
        sync(file)
    except (OSError, SafetensorError) as error:
        raise full_or(error) from error
    return own


def _unshared(shard: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Contiguous, each with memory of its own: safetensors refuses tied weights that share it."""
    used, unshared = set[int](), dict[str, Tensor]()
    for name, tensor in shard.items():
        own = tensor.contiguous()
        if own.untyped_storage().data_ptr() in used:
            own = own.clone()
        used.add(own.untyped_storage().data_ptr())
        unshared[name] = own
    return unshared


def sync(file: Path) -> None:
    """To the disk itself."""
    handle = os.open(file, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def full_or(error: Exception) -> Exception:
    """What to raise for an error of writing: a full disk gets a sentence."""
    full = is_full(error) or getattr(error, "errno", None) == errno.EFBIG
    words = ("No space left", "os error 28", "File too large", "os error 27", "quota")
    if full or any(word in str(error) for word in words):
        return HostError(
            "The disk is full, or files may not grow so large: nothing was written. Name another "
            "place with --to."
        )
    return error


def _verify(file: Path, written: Mapping[str, tuple[str, tuple[int, ...]]]) -> None:
    with safe_open(file, framework="pt") as opened:
        if set(opened.keys()) != set(written):
            raise WorkbenchError(f"{file.name} does not hold the names that were written.")
        for name, (expected, shape) in written.items():
            tensor = opened.get_tensor(name)
            if tuple(tensor.shape) != shape or digest(tensor) != expected:
                raise WorkbenchError(f"{name} in {file.name} is not what was written to it.")


def _shards(
    tensors: Tensors, names: Mapping[str, str], dtype: torch.dtype | None, most: int
) -> list[list[str]]:
    """The new names in groups of at most `most` bytes; a larger weight has one of its own."""
    shards, size = list[list[str]](), 0
    for new, old in names.items():
        own = tensors.bytes(old, dtype)
        if not shards or size + own > most:
            shards.append([])
            size = 0
        shards[-1].append(new)
        size += own
    return shards


def _name(number: int, of: int) -> str:
    return f"model-{number + 1:05d}-of-{of:05d}.safetensors"
