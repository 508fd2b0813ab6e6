"""Text that every machine already has: the sources of Python's standard library, as bytes.

Used by the recipes beside this file; it needs torch alone.
"""

import os
import sys
import sysconfig
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

CORPUS_BYTES = 12_000_000  # an upper bound, so that start-up stays short on any machine
NOT_READ = {"dist-packages", "encodings", "idlelib", "pydoc_data", "site-packages", "test", "tests"}


def read_corpus(length: int) -> tuple[Tensor, Tensor]:
    """The bytes to train on and those held out for validation, each uint8 [n].

    Leaves with a sentence where one of them is too short for a sequence of `length`.
    """
    root, files = sysconfig.get_path("stdlib"), list[Path]()
    for folder, names, sources in os.walk(root):
        names[:] = set(names) - NOT_READ
        files += [Path(folder, name) for name in sources if name.endswith(".py")]
    train, held_out = bytearray(), bytearray()
    for number, path in enumerate(sorted(files)):
        if len(train) + len(held_out) < CORPUS_BYTES:  # every twentieth file is held out
            (held_out if number % 20 == 19 else train).extend(path.read_bytes())
    if len(held_out) < 100_000:
        sys.exit(f"Only {len(train)} bytes of Python sources below {root}: is it zipped?")
    if len(held_out) <= length:
        sys.exit(
            f"--seq-len {length}: {len(held_out):,} bytes are held out for validation. Give a "
            "shorter one."
        )
    return torch.frombuffer(train, dtype=torch.uint8), torch.frombuffer(held_out, dtype=torch.uint8)


class Share(NamedTuple):
    """Which part of the global batch this process works on."""

    rank: int
    """Its place among the processes that see different data."""
    ranks: int
    """How many those are; tensor, pipeline and context ranks of one replica count once."""
    micro_batch: int
    """Sequences per micro-step."""


def micro_batch(
    data: Tensor, share: Share, length: int, *, key: int, index: int, of: int
) -> tuple[Tensor, Tensor]:
    """Inputs and targets [micro_batch, length] of micro-step `index` of the `of` of step `key`.

    All processes draw the places of the whole step and take their own: the global batch depends
    neither on how it is spread nor on the past, so a resumed run sees the same data.
    """
    batch = share.micro_batch
    generator = torch.Generator().manual_seed(key % 2**32)  # the engine ignores higher bits
    places = (of * share.ranks * batch, 1)
    starts = torch.randint(len(data) - length, places, generator=generator)
    mine = starts[(index * share.ranks + share.rank) * batch :][:batch]
    mine = mine.to(data.device, non_blocking=True)
    windows = data[mine + torch.arange(length + 1, device=data.device)].long()
    return windows[:, :-1], windows[:, 1:]
