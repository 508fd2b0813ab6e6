"""What a search looks at: the space of layouts, one layout of it, its choices and its batch."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from workbench.describe import Strategy, Workload
from workbench.describe.checks import require_choice, require_positive
from workbench.describe.library_options import SCHEDULES
from workbench.describe.strategy import RECOMPUTE
from workbench.errors import UsageError

DATA = ("ddp", "fsdp", "fsdp-grad-op", "hsdp", "zero1", "zero2", "zero3")
BATCH_TOKENS = 2**19
"""Tokens per optimizer step where no global batch is given: what GPT-3's models of 125 M to 760 M
parameters were trained with (arXiv 2005.14165, table 2.1)."""

_MORE = 8  # a default batch is made larger by no more than this part of it, to suit the ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """Which layouts are looked at; the defaults are what PyTorch, Accelerate and Megatron run."""

    data: tuple[str, ...] = ("ddp", "fsdp", "fsdp-grad-op", "hsdp", "zero1")
    """Ways to lay out data parallelism, of `DATA`; zero2 and zero3 are DeepSpeed's names for what
    FSDP does too."""
    most_tp: int | None = None
    """Largest tensor-parallel degree; None = the GPUs of a node."""
    tp_across_nodes: bool = False
    """Let tensor parallelism leave the node."""
    most_pp: int = 16
    """Most pipeline stages: Llama 3 405B was trained with 16 (arXiv 2407.21783, table 4)."""
    most_cp: int | None = None
    """Largest context-parallel degree; None = what the sequence allows."""
    recompute: tuple[str, ...] = RECOMPUTE
    """Activation checkpointing, lightest first."""
    offload: bool = True
    """Look at optimizer states and weights in host memory too."""
    schedule: str = "1f1b"
    """Pipeline schedule."""
    any_script: bool = False
    """Only layouts that the launcher gives to any script unchanged."""
    launchable: bool = True
    """Leave out what the launcher does not start; False: estimates for other launchers too."""

    def __post_init__(self) -> None:
        for name in self.data:
            require_choice("data parallelism", name, DATA)
        for name in self.recompute:
            require_choice("recompute", name, RECOMPUTE)
        require_choice("schedule", self.schedule, SCHEDULES)
        if not self.data or not self.recompute:
            raise UsageError("A search needs at least one way each of data and recompute.")
        for name in ("most_tp", "most_pp", "most_cp"):
            if getattr(self, name) is not None:
                require_positive(name, getattr(self, name))


ANY_SCRIPT = Space(
    data=("ddp", "fsdp", "fsdp-grad-op", "hsdp"),
    most_tp=1,
    most_pp=1,
    most_cp=1,
    recompute=("none", "full"),
    offload=False,
    any_script=True,
)
"""Layouts that the launcher gives to any script unchanged: no model parallelism in its code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A layout with its recompute and offload decided; only the micro-batch is open."""

    strategy: Strategy
    """Complete strategy."""
    lighter: tuple[int, ...]
    """Choices of the same layout (by position) that do no more work: less recompute and less
    offload. They are never slower at the same micro-batch."""
    fits: dict[int, int] = field(default_factory=dict[int, int], compare=False)
    """Micro-batch -> bytes on the card, as far as anyone asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelLayout:
    """One set of degrees and one way of data parallelism on a number of ranks."""

    strategy: Strategy
    """Without recompute and offload."""
    reason: str = ""
    """Why no library can run it, or the launcher cannot start it; empty = legal."""
    is_launchable: bool = True
    """False where `reason` is the launcher's."""
    micro_batches: tuple[int, ...] = ()
    """Sequences per forward pass and rank, ascending; each divides the rank's share."""
    share: int = 0
    """Sequences per optimizer step and data-parallel rank."""
    choices: tuple[Choice, ...] = ()
    """Recompute x offload, lightest first."""

    @property
    def count(self) -> int:
        """Layouts it stands for; an impossible one counts once."""
        return max(1, len(self.choices) * len(self.micro_batches))

    def accumulate(self, micro_batch: int) -> int:
        """Micro-batches per optimizer step."""
        return self.share // micro_batch


def default_batch(workload: Workload, ranks: int = 1) -> int:
    """Sequences per optimizer step where none are given, at least one per rank.

    The smallest power of two that holds `BATCH_TOKENS`; of samples that are no tokens, the batch
    of the workload's own step. Ranks that do not divide one, such as 6 or
    7, get a little more: a multiple of them with a power of two in it, for the micro-batches.

    >>> from workbench.describe import Model
    >>> work = Workload(model=Model.catalog("gpt2"), seq_len=1024, micro_batch=1)
    >>> default_batch(work), default_batch(work, 8), default_batch(work, 6), default_batch(work, 7)
    (512, 512, 528, 560)
    """
    target = -(-BATCH_TOKENS // workload.sequence)
    if not workload.counts_tokens:
        target = workload.micro_batch * workload.accumulate
    target = max(target, ranks)
    odd = ranks // (ranks & -ranks)
    if odd == 1:
        return 1 << (target - 1).bit_length()
    unit = odd << max(0, (target // _MORE // odd).bit_length() - 1)
    unit = math.lcm(unit, ranks)
    return -(-target // unit) * unit
