"""Silent bugs, one script each; the line that is right stands in the script behind ``# FIX:``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

SCRIPTS = Path(__file__).parent / "scripts"
CORRECT = (
    *sorted((Path(__file__).parent / "correct").glob("*.py")),
    *(
        Path(__file__).parent.parent / "scripts" / f"{name}.py"
        for name in ("hf_trainer", "accelerate_loop")
    ),
)
"""Scripts that are right: nothing may be told of them but notes."""
_FIX = re.compile(r"^( *)(.*\S)  # FIX: (.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One silent bug."""

    script: str
    """Name in `scripts`, without .py."""
    source: str
    """Where it is described."""
    kinds: tuple[str, ...]
    """Verdicts that name it."""
    steps: int = 10
    """Optimizer steps that are enough to see it; 20 at most."""
    traincheck: bool = True
    """Whether it is one of the 18 that TrainCheck (OSDI'25) detects, or of its other cases."""
    note: bool = False
    """Whether a note tells it, since it may be meant so; `kinds` may be words of the note."""

    def correct(self) -> str:
        """The same script with the right lines."""
        text = (SCRIPTS / f"{self.script}.py").read_text()
        return _FIX.sub(lambda found: found[1] + found[3], text)

    def wrong(self) -> str:
        """The script as people wrote it: without the notes."""
        text = (SCRIPTS / f"{self.script}.py").read_text()
        return _FIX.sub(lambda found: found[1] + found[2], text)


def _ours(script: str, source: str, *kinds: str, note: bool = False) -> Case:
    return Case(script=script, source=source, kinds=kinds, traincheck=False, note=note)


NOT_EXCHANGED = ("gradients-not-exchanged",)
DAMAGED = ("exchange-damaged",)
CASES = (
    Case(script="clips_on_one_rank", source="DeepSpeed 1801 (BLOOM)", kinds=("weights-drift",)),
    Case(script="autocast_lost", source="lightning-thunder 725", kinds=("autocast-ignored",)),
    Case(script="never_frozen", source="mmpretrain 702", kinds=("freeze-not-applied",)),
    Case(script="lossy_hook", source="PyTorch 84803", kinds=DAMAGED),
    Case(script="lossy_link", source="PyTorch 96600", kinds=DAMAGED),
    Case(script="lossy_stage", source="Baichuan2 86", kinds=(*DAMAGED, "gradients-differ")),
    Case(script="replaced_after_wrapping", source="PyTorch 104336", kinds=NOT_EXCHANGED),
    Case(script="sometimes_unwrapped", source="jxmnop on X", kinds=NOT_EXCHANGED),
    Case(script="step_compiled_away", source="PyTorch 115607", kinds=("no-update",)),
    Case(script="frozen_head", source="PyTorch forum 84911", kinds=("frozen-output-layer",)),
    Case(
        script="missing_zero_grad", source="StackOverflow 60335387", kinds=("gradients-not-zeroed",)
    ),
    Case(script="workers_alike", source="StackOverflow 67180955", kinds=("same-random-data",)),
    Case(script="dropout_in_eval", source="transformers 33844", kinds=("dropout-in-eval",)),
    Case(script="joined_batch", source="transformers 34204", kinds=("batch-shape",)),
    Case(script="stale_optimizer", source="Accelerate 2665", kinds=("not-in-optimizer",)),
    _ours("moved_after_wrapping", "PyTorch 104336, by conversion", *NOT_EXCHANGED),
    _ours("no_sampler", "no DistributedSampler", "same-data"),
    _ours("no_set_epoch", "no set_epoch()", "missing-set-epoch"),
    _ours("same_seed_shards", "Smol Training Playbook", "same-shards"),
    _ours("left_in_eval", "no model.train() after validation", "trains-in-eval-mode"),
    _ours("uneven_tokens", "mean over unequal tokens", "unequal-tokens"),
    _ours("accumulates_sums", "accumulation without division", "loss-not-divided"),
    _ours("not_wrapped", "no DistributedDataParallel", *NOT_EXCHANGED),
    _ours("always_no_sync", "no_sync() left on", *NOT_EXCHANGED),
    _ours("module_called", "model.module called", *NOT_EXCHANGED),
    _ours("drawn_by_rank", "initial weights drawn by rank", "initial-weights"),
    _ours("sharded_after_optimizer", "optimizer made before fully_shard", "not-in-optimizer"),
    _ours("clips_before_exchange", "clipping before all_reduce", "clipped-before-exchange"),
    _ours("clips_each_micro_batch", "clip_grad_value_ under no_sync()", "clipped-before-exchange"),
    _ours("clips_scaled", "clipping before unscale_()", "clipped-before-unscale"),
    _ours("buffers_by_rank", "broadcast_buffers=False with BatchNorm", "buffers-by-rank"),
    _ours("tied_by_copy", "tied weights split", "tied-weights-split"),
    _ours("left_out", "shards of a fixed size", "samples-left-out"),
    _ours("drops_last", "drop_last without shuffling", "samples-left-out"),
    _ours("too_many_replicas", "wrong num_replicas", "samples-left-out"),
    _ours("schedule_by_rank", "world size in the schedule", "schedule-too-fast"),
    _ours("schedule_prepared", "Accelerate's schedule, prepared length", "schedule-too-fast"),
    _ours("norm_by_rank", "BatchNorm over 2 samples a rank", "loss-differs", note=True),
    _ours(
        *("rate_not_scaled", "learning rate not scaled"),
        *("not scaled with the number of ranks",),
        note=True,
    ),
)
NOT_REBUILT = {
    "DeepSpeed 5794": "a hang, which `workbench diagnose` names",
    "PyTorch 51800": "weights that are wrong before any training step",
    "transformers 17877": "weights that are drawn twice: slow, and right",
    "transformers 23723": "generation alone: no training step",
}
"""Of TrainCheck's cases, and why."""
NOT_NAMED = {
    "a schedule as long as the data set of one rank": "the rate is the same on one rank and on "
    "several in the first steps, and nothing tells how many epochs are meant",
    "clip_grad_value_ after the exchange": "it is the same on all ranks, and may be meant so",
    "unequal tokens among the micro-batches of one rank": "only those among the ranks are compared",
    "two-dimensional layouts (FSDP with tensor parallelism) whose tensor ranks read the same data": (
        "not tried; the ranks may be accused of reading the same data"
    ),
}
"""Bugs that are known not to be told, and why."""
