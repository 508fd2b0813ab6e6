"""The three collectives of data parallelism as rings, for programs of simulated_ranks.py.

Among `members` (ranks by number; default: all) each is called by every one of them. A rank talks to
its two neighbours only, in n - 1 rounds, and sends (n - 1) / n of the values in reduce_scatter and
in all_gather, so 2 (n - 1) / n in all_reduce.
"""

# ruff: noqa: INP001 - a file beside the notebooks, for their readers

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from simulated_ranks import Rank


def reduce_scatter(rank: Rank, values: Any, members: Sequence[int] | None = None) -> torch.Tensor:
    """The sum's part that is this rank's: the sum over `members`, cut into as many chunks."""
    members = list(members or range(rank.size))
    place, count = members.index(rank.number), len(members)
    parts = list(torch.as_tensor(values).clone().tensor_split(count))
    for step in range(1, count):
        rank.send(members[(place + 1) % count], parts[(place - step) % count])
        parts[(place - step - 1) % count] += rank.recv(members[place - 1])
    return parts[place]


def all_gather(rank: Rank, part: Any, members: Sequence[int] | None = None) -> torch.Tensor:
    """The parts of all members, joined in their order."""
    members = list(members or range(rank.size))
    place, parts = members.index(rank.number), [torch.as_tensor(part)] * len(members)
    for step in range(1, len(members)):
        rank.send(members[(place + 1) % len(members)], parts[(place - step + 1) % len(members)])
        parts[place - step] = rank.recv(members[place - 1])
    return torch.cat(parts)


def all_reduce(rank: Rank, values: Any, members: Sequence[int] | None = None) -> torch.Tensor:
    """The sum over all members, on each of them."""
    return all_gather(rank, reduce_scatter(rank, values, members), members)
