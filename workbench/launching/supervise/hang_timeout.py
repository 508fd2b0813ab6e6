"""How long a run may stand still before it is ended as hung.

An evaluation or a sort of a large table stands at one line for minutes, as a hang does, and a long
backward pass beside a peer that waits in another collective looks like a deadlock. What the ranks
do meanwhile tells them apart: they compute, or wait for a disk.
"""

from __future__ import annotations

from collections.abc import Mapping

from workbench.diagnose.facts import RankFacts
from workbench.store.findings import CERTAIN_HANGS, Finding

IDLE_SECONDS = 120.0  # a rank that does nothing at all for so long waits in vain
BUSY_SECONDS = 900.0  # as NCCL's own watchdog has it: one that waits for a GPU spins meanwhile
_BUSY_SHARE = 0.1  # of one core


class HangTimeout:
    """Follows one standing finding. `expired` is called about once a second."""

    def __init__(self) -> None:
        self._key: tuple[str, int | None] | None = None
        self._since = 0.0
        self._cpu: dict[int, float] = {}

    def expired(self, hang: Finding, ranks: Mapping[int, RankFacts], now: float) -> bool:
        """Whether it has stood long enough; `now` is in seconds of the monotonic clock."""
        if hang.key != self._key:
            self._key, self._since = hang.key, now
            self._cpu = {rank: one.cpu_seconds or 0.0 for rank, one in ranks.items()}
        if hang.kind in CERTAIN_HANGS:
            return True
        stood = now - self._since
        if stood < IDLE_SECONDS:
            return False
        one = None if hang.kind == "deadlock" else hang.rank
        blamed = [rank for rank in ranks if rank == one] or list(ranks)
        at_work = any(self._works(rank, ranks[rank], stood) for rank in blamed)
        return not at_work or stood >= BUSY_SECONDS

    def reset(self) -> None:
        """Nothing stands still now."""
        self._key = None

    def _works(self, rank: int, one: RankFacts, seconds: float) -> bool:
        used = (one.cpu_seconds or 0.0) - self._cpu.get(rank, 0.0)
        return one.process_state == "D" or used > _BUSY_SHARE * seconds
