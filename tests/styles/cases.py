"""Scripts in styles that nothing here was tuned on, half of them with one fault, and the truth."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

SCRIPTS = Path(__file__).parent / "scripts"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One script, how it is launched, and what is true of the run."""

    script: str
    """Name in `scripts`, without .py."""
    steps: int | None
    """Optimizer steps; None where the fault decides."""
    ranks: int = 2
    """Processes of the launch; a script that spawns its ranks has one."""
    outcome: str = "succeeded"
    """How the run ends by itself; "" = it hangs."""
    kinds: tuple[str, ...] = ()
    """Findings that stand at the end, the first one first; () = there is nothing to find."""
    unit: str | None = None
    """samples, tokens, or None where no loader tells of either."""


CASES = (
    Case(script="fabric_like", steps=40, unit="samples"),
    Case(script="hand_allreduce", steps=40),
    Case(script="distill", steps=40, unit="samples"),
    Case(script="contrastive", steps=40, unit="samples"),
    Case(script="packed_lstm", steps=40, unit="samples"),
    Case(script="mixed_streams", steps=30, ranks=4, unit="samples"),
    Case(script="ppo", steps=48),
    Case(script="accumulate_nan", steps=40, unit="samples", kinds=("nan-loss",)),
    Case(script="local_sgd_lr", steps=60, unit="samples", kinds=("rates-differ",)),
    Case(script="graph_slow_step", steps=40, ranks=4, kinds=("straggler",)),
    Case(script="augment_slow_input", steps=50, unit="samples", kinds=("input-bound",)),
    Case(script="swa_batchnorm", steps=50, unit="samples", kinds=("missing-set-epoch",)),
    Case(script="rank0_evaluates", steps=None, outcome="failed", kinds=("collective-mismatch",)),
    Case(script="swallowed", steps=15, kinds=("skipped-errors",)),
    Case(script="double_ddp", steps=39, unit="samples", kinds=("wrapped-twice",)),
    Case(script="padded_mean", steps=30, unit="tokens"),  # verify names it, a run has nothing
    Case(script="uneven_hang", steps=None, outcome="", unit="samples", kinds=("deadlock",)),
    Case(script="seq2seq_leak", steps=60),  # the memory that it keeps is not found yet
    Case(script="spawn_dcp", steps=40, ranks=1),
)
