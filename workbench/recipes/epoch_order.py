"""Which example stands where, and which of them a process trains on: the same for any ranks.

Positions count through all epochs. torch's DistributedSampler repeats examples where the ranks do
not divide them; here the steps run on into the next epoch, so none is repeated.
"""

import torch


class EpochOrder:
    """Examples by their position; each epoch is shuffled again."""

    def __init__(self, examples: int, seed: int) -> None:
        self._examples, self._seed = examples, seed
        self._epoch = -1
        self._order: list[int] = []

    def __getitem__(self, position: int) -> int:
        """The example at this position."""
        epoch, at = divmod(position, self._examples)
        if epoch != self._epoch:
            generator = torch.Generator().manual_seed(1_000_003 * self._seed + epoch)
            self._epoch = epoch
            self._order = [*map(int, torch.randperm(self._examples, generator=generator))]
        return self._order[at]


def positions(step: int, *, size: int, accumulate: int, rank: int, ranks: int) -> list[list[int]]:
    """Those of each micro-step of one process, `size` each.

    >>> positions(1, size=2, accumulate=2, rank=1, ranks=2)
    [[10, 11], [14, 15]]
    """
    each = accumulate * ranks * size
    rows = [list(range(at, at + size)) for at in range(step * each, (step + 1) * each, size)]
    return rows[rank::ranks]
