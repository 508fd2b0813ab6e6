"""The processes that measure together: barriers, a common number of rounds, the slowest time.

Every process walks through the same probes in the same order; those that a probe does not need
wait at its end, asleep. torch is loaded here, so only the children import this package's modules.
"""

# torch.distributed is only partly typed.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

TIMEOUT = timedelta(seconds=300)  # a probe of a loaded machine; a lost process ends all earlier
ROUND_SECONDS = 0.02  # a round is long against a time slice of the scheduler
FEWEST, MOST = 3, 60


class ProcessGroup:
    """The first `size` processes, as one of them sees them."""

    def __init__(self, size: int, rank: int, *, device: torch.device, threads: int) -> None:
        self.size, self.rank, self.device, self.threads = size, rank, device, threads
        ranks = list(range(size))
        self._host_group: Any = dist.new_group(ranks, timeout=TIMEOUT, backend="gloo")
        self.backend = "nccl" if device.type == "cuda" else "gloo"
        self.group: Any = self._host_group
        if self.backend == "nccl" and size > 1:
            self.group = dist.new_group(ranks, timeout=TIMEOUT, backend="nccl")

    @property
    def contains_this_process(self) -> bool:
        """Whether this process is one of them."""
        return self.rank < self.size

    def barrier(self) -> None:
        """Synchronize the device, then all processes of the group."""
        self.finish()
        if self.size > 1:
            dist.barrier(group=self._host_group)

    def finish(self) -> None:
        """Wait for the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def broadcast(self, number: int) -> int:
        """Return the number of rank 0 on every process."""
        values = torch.tensor([number])
        if self.size > 1:
            dist.broadcast(values, 0, group=self._host_group)
        return int(values.item())

    def slowest(self, seconds: Sequence[float]) -> list[float]:
        """Round by round, the longest of all processes."""
        values = torch.tensor(list(seconds), dtype=torch.float64)
        if self.size > 1 and len(values):
            dist.all_reduce(values, dist.ReduceOp.MAX, group=self._host_group)
        return [float(value) for value in values]

    def mean(self, seconds: Sequence[float]) -> list[float]:
        """Round by round, the mean of all processes."""
        values = torch.tensor(list(seconds), dtype=torch.float64)
        if self.size > 1 and len(values):
            dist.all_reduce(values, group=self._host_group)
        return [float(value) / self.size for value in values]

    def rounds(
        self, work: Callable[[], object], budget: float, *, together: bool = False
    ) -> list[float]:
        """Seconds of one `work`, in as many rounds as the budget allows; the slowest process's.

        Args:
            work: What is measured; the same on every process.
            budget: Seconds for all rounds.
            together: `work` is a collective and must not be repeated within a round.
        """
        work()
        began = self._start()
        work()
        self.finish()
        once = max(1e-7, time.perf_counter() - began)
        repeat = 1 if together else self.broadcast(max(1, round(ROUND_SECONDS / once)))
        count = self.broadcast(min(MOST, max(FEWEST, int(budget / (once * repeat)))))
        seconds: list[float] = []
        for _ in range(count):
            began = self._start()
            for _ in range(repeat):
                work()
            self.finish()
            seconds.append((time.perf_counter() - began) / repeat)
        return self.slowest(seconds)

    def _start(self) -> float:
        self.barrier()
        return time.perf_counter()


def typical(seconds: Sequence[float]) -> float:
    """Median of the faster half of the rounds: whatever else runs on a host only adds."""
    ordered = sorted(seconds)
    return statistics.median(ordered[: max(1, (len(ordered) + 1) // 2)])


def spread(seconds: Sequence[float]) -> float:
    """Half the distance of the quartiles over the median."""
    if len(seconds) < 4:
        return 0.0
    low, middle, high = statistics.quantiles(seconds, n=4)
    return round((high - low) / 2 / middle, 4)
