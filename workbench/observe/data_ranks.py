"""Which ranks train on the same data: those of one tensor or pipeline group read the same batches.

Their tokens and samples count once. Told by the fingerprints of batches that the ranks write now
and then; ranks whose fingerprints were always equal share their data.
"""

from __future__ import annotations

from collections.abc import Mapping

_ENOUGH = 2  # different fingerprints by which data is known to vary


class DataRanks:
    """Groups ranks by what they read, as far as their fingerprints tell."""

    def __init__(self) -> None:
        self._read: dict[int, int] = {}
        self._seen: set[int] = set()
        self._compared = 0
        self._once: frozenset[int] = frozenset()

    def add(self, fingerprints: Mapping[int, int]) -> None:
        """Take in the fingerprints of one step, by rank."""
        if not fingerprints:
            return
        for rank, fingerprint in fingerprints.items():
            self._read[rank] = hash((self._read.get(rank), fingerprint))
            if len(self._seen) < _ENOUGH:
                self._seen.add(fingerprint)
        self._compared += 1
        first = {read: rank for rank, read in sorted(self._read.items(), reverse=True)}
        self._once = frozenset(self._read) - frozenset(first.values())

    @property
    def is_conclusive(self) -> bool:
        """Whether equal data can be told from different: not of ranks that read constants."""
        return self._compared > 0 and (len(self._seen) >= _ENOUGH or self._compared == 1)

    def total(self, counts: Mapping[int, int]) -> int | None:
        """The sum of the ranks' counts, each piece of data once; None of no counts."""
        if not counts:
            return None
        counted = counts.keys() - self._once if self.is_conclusive else counts.keys()
        return sum(counts[rank] for rank in counted)
