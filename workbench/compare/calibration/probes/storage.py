"""The store's disk, and how fast one process draws the recipe's batches."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

import importlib
import os
import shutil
import time
from pathlib import Path
from typing import Any

import torch

from workbench.compare.calibration.probes.process_group import ProcessGroup, typical

CHUNK = os.urandom(4 << 20)  # no file system compresses it away
MOST_BYTES = 512 << 20
FREE_SHARE = 0.05


def disk(folder: Path, budget: float) -> dict[str, float]:
    """Bytes per second written (flushed to the disk) and read; nothing is left behind.

    Nothing is said of a disk that cannot be written.
    """
    path = folder / f".calibration-{os.getpid()}.tmp"
    limit = min(MOST_BYTES, int(FREE_SHARE * shutil.disk_usage(folder).free))
    try:
        with path.open("xb", buffering=0) as file:
            began, written = time.perf_counter(), 0
            while written < limit and time.perf_counter() - began < budget / 2:
                written += file.write(CHUNK)
            os.fsync(file.fileno())
            seconds = time.perf_counter() - began
            if not written:
                return {}
            if hasattr(os, "posix_fadvise"):  # or the page cache would be measured
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        began = time.perf_counter()
        with path.open("rb", buffering=0) as file:
            read, buffer = 0, bytearray(len(CHUNK))
            while time.perf_counter() - began < budget / 2 and (got := file.readinto(buffer)):
                read += got
        return {
            "disk_write": written / seconds,
            "disk_read": read / (time.perf_counter() - began),
        }
    except OSError:
        return {}
    finally:
        path.unlink(missing_ok=True)


def loader(group: ProcessGroup, budget: float) -> dict[str, float]:
    """Tokens per second of the recipe's own batches."""
    corpus: Any = importlib.import_module("corpus")
    data = torch.randint(0, 256, (4 << 20,), dtype=torch.uint8)
    share = corpus.Share(0, 1, 8)
    numbers = iter(range(10**9))
    length = 256

    def draw() -> None:
        corpus.micro_batch(data, share, length, key=next(numbers), index=0, of=1)

    return {"loader_tokens": 8 * length / typical(group.rounds(draw, budget))}
