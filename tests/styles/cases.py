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
    arguments: tuple[str, ...] = ()
    """Of the script in a run."""
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
    verdicts: tuple[str, ...] | None = ()
    """What `verify` says but notes, in five steps; None = it refuses."""
    measured: tuple[int, int, int]
    """Parameters, micro-batch and micro-batches a step as `measure` says."""


CASES = (
    Case(script="fabric_like", steps=40, unit="samples", measured=(85_002, 8, 4)),
    Case(script="hand_allreduce", steps=40, measured=(1332, 32, 1)),
    Case(script="distill", steps=40, unit="samples", measured=(35_160, 24, 1)),
    Case(script="contrastive", steps=40, unit="samples", measured=(40_769, 32, 1)),
    Case(script="packed_lstm", steps=40, unit="samples", measured=(47_717, 16, 1)),
    Case(script="mixed_streams", steps=30, ranks=4, unit="samples", measured=(114_432, 8, 1)),
    Case(script="ppo", steps=48, measured=(771, 64, 1)),
    Case(
        script="accumulate_nan",
        steps=40,
        unit="samples",
        kinds=("nan-loss",),
        measured=(897, 16, 2),
    ),
    Case(
        script="local_sgd_lr",
        steps=60,
        unit="samples",
        kinds=("rates-differ",),
        measured=(4355, 20, 1),
        verdicts=("rates-differ",),
    ),
    Case(script="graph_slow_step", steps=40, ranks=4, kinds=("straggler",), measured=(1666, 16, 1)),
    Case(
        script="augment_slow_input",
        steps=50,
        unit="samples",
        kinds=("input-bound",),
        measured=(5402, 8, 1),
    ),
    Case(
        script="swa_batchnorm",
        steps=50,
        unit="samples",
        kinds=("missing-set-epoch",),
        measured=(1602, 16, 1),
        verdicts=("buffers-by-rank",),
    ),
    Case(
        script="rank0_evaluates",
        steps=None,
        outcome="failed",
        kinds=("collective-mismatch",),
        measured=(11_794, 8, 1),
    ),
    Case(
        script="swallowed",
        steps=15,
        kinds=("skipped-errors",),
        measured=(2128, 32, 1),
        verdicts=("same-data",),
    ),  # one seed
    Case(
        script="double_ddp",
        steps=39,
        unit="samples",
        kinds=("wrapped-twice",),
        measured=(837, 16, 1),
    ),
    Case(
        script="padded_mean",
        steps=30,
        unit="tokens",
        measured=(10_112, 8, 1),
        verdicts=("unequal-tokens", "gradients-differ"),
    ),  # verify names it, a run has nothing
    Case(
        script="uneven_hang",
        steps=None,
        outcome="",
        unit="samples",
        kinds=("deadlock",),
        measured=(9, 25, 1),
        verdicts=("samples-left-out",),
    ),
    Case(
        script="seq2seq_leak",
        arguments=("--steps", "240"),  # it keeps half a megabyte a step
        steps=240,
        kinds=("memory-growth",),
        measured=(820_284, 64, 1),
    ),
    Case(script="spawn_dcp", steps=40, ranks=1, measured=(1409, 16, 1), verdicts=None),
)
