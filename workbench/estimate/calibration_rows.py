"""The rows of a calibration: what one probe found, and how they are read back from a file."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """A matrix product [m, k] x [k, n], or fused attention, as `processes` ran it side by side."""

    precision: str
    """fp32, tf32, bf16, fp16; "attention" = fused causal attention, forward and backward."""
    m: int
    """Rows; attention: batch x heads."""
    k: int
    """Inner size; attention: tokens of a sequence."""
    n: int
    """Columns; attention: width of a head."""
    processes: int
    """How many did it at the same time, each with its share of the cores (GPU: 1)."""
    flops_per_second: float
    """Of one process."""
    spread: float = 0.0
    """Half the distance of the quartiles over the median."""

    @property
    def flops(self) -> float:
        """Of one repetition: causal attention forward and backward counts 3.5 times forward's."""
        if self.precision == "attention":
            return 3.5 * 2.0 * self.m * self.k * self.k * self.n
        return 2.0 * self.m * self.k * self.n

    @property
    def seconds(self) -> float:
        """Of one repetition."""
        return self.flops / self.flops_per_second


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What one of `processes` processes reaches while all of them do the same."""

    processes: int
    """Processes at a time."""
    threads: int
    """Threads of each."""
    memory_bytes_per_second: float
    """Read and written by a copy that no cache holds; GPU: on the card."""
    launch_seconds: float
    """One operation on next to nothing, launched from Python."""
    spread: float = 0.0
    """Of the bandwidth: half the distance of the quartiles over the median."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """One collective over all ranks, through torch.distributed."""

    kind: str
    """all-reduce, all-gather or reduce-scatter."""
    backend: str
    """nccl or gloo."""
    ranks: int
    """Ranks of the group."""
    bytes: int
    """All-reduce: of the tensor; the others: of the whole, before it is scattered or gathered."""
    seconds: float
    """From the first rank's start to the last one's end."""
    spread: float = 0.0
    """Half the distance of the quartiles over the median."""

    @property
    def bus_bytes_per_second(self) -> float:
        """What a link carries: nccl-tests' bus bandwidth, comparable over ranks and kinds."""
        passes = 2.0 if self.kind == "all-reduce" else 1.0
        return passes * (self.ranks - 1) / self.ranks * self.bytes / self.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredStep:
    """A few real steps of the embedded recipe's model: medians, the slowest quarter left out."""

    layers: int
    """Blocks."""
    hidden: int
    """Width."""
    heads: int
    """Attention heads."""
    seq_len: int
    """Tokens per sequence."""
    micro_batch: int
    """Sequences per rank."""
    precision: str
    """fp32 or bf16 (autocast)."""
    processes: int
    """Ranks, data-parallel (DDP)."""
    forward_seconds: float
    """Forward and loss."""
    backward_seconds: float
    """Backward without exchange."""
    exchange_seconds: float
    """What backward takes longer when gradients travel, waiting included; 0 for one process."""
    update_seconds: float
    """Clipping, optimizer, and dropping the gradients."""
    step_seconds: float
    """All of it with the exchange, from one step's end to the next."""
    spread: float = 0.0
    """Half the distance of the quartiles of `step_seconds` over its median."""


_CHECKS = {"str": str, "int": int, "float": (int, float)}


def read_row(kind: type[Row], stored: object) -> Row | None:
    """A row of anyone's file; None where a value is missing, of another type, or no number.

    >>> read_row(Rates, {"processes": 1}) is None
    True
    """
    if not isinstance(stored, Mapping):
        return None
    stored_row = cast("Mapping[str, Any]", stored)
    values: dict[str, Any] = {}
    for field in dataclasses.fields(cast("Any", kind)):
        if field.name not in stored_row:
            if field.default is dataclasses.MISSING:
                return None
            continue
        value = stored_row[field.name]
        if isinstance(value, bool) or not isinstance(value, _CHECKS[str(field.type)]):
            return None
        if isinstance(value, (int, float)) and not _is_sound(field.name, value):
            return None
        values[field.name] = value
    return kind(**values)


def _is_sound(name: str, value: float) -> bool:
    zero = name in {"spread", "exchange_seconds"}
    return math.isfinite(value) and (value >= 0 if zero else value > 0) and value < 1e24


def read_rows(kind: type[Row], stored: object) -> tuple[Row, ...]:
    """The rows that can be read, in their order."""
    if not isinstance(stored, Sequence) or isinstance(stored, str):
        return ()
    rows = [read_row(kind, row) for row in cast("Sequence[object]", stored)]
    return tuple(row for row in rows if row is not None)
