"""The line of one step in ``metrics/rank-N.jsonl``, built by the thread that writes it.

Between two steps of a model hardly any of this code is in the processor's cache: every call there
costs several times what it costs in a loop. So the training thread keeps plain values, and the
writing thread makes lines of many steps at once.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from .batches import NOTHING, Batch
from .writers import current_rss_peak

UNKNOWN_MEMORY = -1  # of a rank on a GPU whose allocator does not tell
_MEMORY_SECONDS = 1.0  # between two readings of the process's memory


class StepRecord(NamedTuple):
    """What is known of one optimizer step; None where nothing tells."""

    step: int
    time: float
    seconds: float | None
    data_seconds: float | None
    batch: Batch
    backward_at: float
    optimizer_at: float | None
    paused_seconds: float
    waited_seconds: float
    forward_waited_seconds: float
    lr: float | None
    memory_bytes: int | None
    loss: float | None = None
    grad_norm: float | None = None

    def line(self) -> dict[str, Any]:
        """The record as it is written, without what is not known."""
        line: dict[str, Any] = {"step": self.step, "time": round(self.time, 6)}
        if self.seconds is not None:
            line["step_seconds"] = round(self.seconds, 6)
        if self.data_seconds is not None:
            line["data_seconds"] = round(self.data_seconds, 6)
        if self.batch is not NOTHING:
            tokens, samples, fingerprint = self.batch
            batch_values = {"tokens": tokens, "samples": samples, "batch": fingerprint}
            line.update((name, value) for name, value in batch_values.items() if value is not None)
        line["backward_at"] = round(self.backward_at, 6)
        if self.optimizer_at is not None:
            line["optimizer_at"] = round(self.optimizer_at, 6)
        for name in ("paused_seconds", "waited_seconds", "forward_waited_seconds"):
            if getattr(self, name):
                line[name] = round(getattr(self, name), 6)
        for name in ("lr", "memory_bytes", "loss", "grad_norm"):
            value = getattr(self, name)
            if value is not None:
                line[name] = value
        return line


class StepLines:
    """Makes the lines of one rank, without a GPU with the process's peak memory."""

    def __init__(self) -> None:
        self._next_reading = 0.0
        self._peak: int | None = None

    def line(self, record: StepRecord | dict[str, Any]) -> dict[str, Any]:
        """The line of `record`, or the line itself."""
        line = record if isinstance(record, dict) else record.line()
        if line.get("memory_bytes") == UNKNOWN_MEMORY:
            del line["memory_bytes"]  # the process's own is no GPU's
        elif "memory_bytes" not in line:
            if line["time"] >= self._next_reading:
                self._next_reading = line["time"] + _MEMORY_SECONDS
                self._peak = current_rss_peak()
            if self._peak is not None:
                line["memory_bytes"] = self._peak
        return line
