"""How the work is spread: one value for every parallel layout, whichever library runs it.

Names (the same in Python, on the command line and in the widgets): ``single``, ``ddp``, ``fsdp``,
``fsdp-grad-op``, ``hsdp``, ``zero1``, ``zero2``, ``zero3``, ``tp``, ``pp``, ``cp``, or degrees
joined by "-": ``dp2-tp2``, ``fsdp4-tp2``, ``pp2-dp2``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from workbench.errors import UnknownNameError, UsageError

NAMES = (
    "single",
    "ddp",
    "fsdp",
    "fsdp-grad-op",
    "hsdp",
    "zero1",
    "zero2",
    "zero3",
    "tp",
    "pp",
    "cp",
)
_PART = re.compile(r"(dp|ddp|fsdp|tp|pp|cp|ep)(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """Degrees of parallelism and the choices that go with them. Degrees multiply to the ranks."""

    name: str
    """The name it was asked for by."""
    dp_replicate: int = 1
    """Data-parallel replicas that hold whole states (DDP, outer dimension of HSDP)."""
    dp_shard: int = 1
    """Ranks over which states are sharded (FSDP, ZeRO)."""
    tp: int = 1
    """Tensor-parallel degree."""
    cp: int = 1
    """Context-parallel degree."""
    pp: int = 1
    """Pipeline stages."""
    ep: int = 1
    """Expert-parallel degree (within the data-parallel ranks)."""
    zero_stage: int | None = None
    """DeepSpeed ZeRO stage; None when DeepSpeed is not used."""
    reshard_after_forward: bool = True
    """FSDP: free the unsharded parameters after forward (FULL_SHARD) or keep them (grad-op)."""

    def __post_init__(self) -> None:
        for field in ("dp_replicate", "dp_shard", "tp", "cp", "pp", "ep"):
            if getattr(self, field) < 1:
                raise UsageError(f"{field} must be at least 1, not {getattr(self, field)}.")

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.dp_replicate * self.dp_shard * self.tp * self.cp * self.pp

    @property
    def data_ranks(self) -> int:
        """Ranks that see different data."""
        return self.dp_replicate * self.dp_shard

    @classmethod
    def parse(cls, name: str, processes: int) -> Strategy:
        """Build the strategy `name` for `processes` ranks.

        Raises:
            UnknownNameError: no such strategy.
            UsageError: the degrees do not multiply to the number of processes.

        >>> Strategy.parse("ddp", 2).dp_replicate, Strategy.parse("dp2-tp2", 4).tp
        (2, 2)
        """
        text = name.strip().lower()
        if processes < 1:
            raise UsageError(f"The number of processes must be at least 1, not {processes}.")
        if text == "single" and processes != 1:
            raise UsageError(
                f"Strategy 'single' runs 1 process, not {processes}. Use 'ddp' for {processes}."
            )
        if text in NAMES:
            return _named(cls(name=text), text, processes)
        strategy = _combined(cls(name=text), text)
        if strategy.world_size != processes:
            raise UsageError(
                f"{text} needs {strategy.world_size} processes, not {processes}. "
                f"Ask for --nproc {strategy.world_size} or change a degree."
            )
        return strategy


def _named(base: Strategy, text: str, processes: int) -> Strategy:
    if text in {"single", "ddp"}:
        return replace(base, dp_replicate=processes)
    if text in {"tp", "pp", "cp"}:
        return replace(base, **{text: processes})
    if text == "hsdp":
        if processes % 2 or processes < 4:
            raise UsageError(f"hsdp needs an even number of at least 4 processes, not {processes}.")
        return replace(base, dp_replicate=2, dp_shard=processes // 2)
    stage = int(text[-1]) if text.startswith("zero") else None
    return replace(
        base, dp_shard=processes, zero_stage=stage, reshard_after_forward=text != "fsdp-grad-op"
    )


def _combined(base: Strategy, text: str) -> Strategy:
    fields = {"dp": "dp_replicate", "ddp": "dp_replicate", "fsdp": "dp_shard"}
    degrees: dict[str, int] = {}
    for part in text.split("-"):
        match = _PART.fullmatch(part)
        if match is None:
            raise UnknownNameError.near("strategy", text, NAMES)
        field = fields.get(match[1], match[1])
        if field in degrees:
            raise UsageError(f"Strategy {text!r} gives {match[1]} twice.")
        degrees[field] = int(match[2])
    return replace(base, **degrees)
