"""A strategy as flags for a recipe: the part that no launcher can do for a script.

Tensor, pipeline and context parallelism change the model's own computation, and DDP's options are
arguments of its constructor; Accelerate's config file has a word for neither. Our recipes take them
as flags, so that the printed command says everything.
"""

from __future__ import annotations

from collections.abc import Sequence

from workbench.describe import Strategy
from workbench.describe.supported import backend
from workbench.errors import UsageError
from workbench.store.names import check_local

_OURS = frozenset({"tp", "cp", "pp", "ep", "ddp"})
_INSTEAD = {
    "--tp": "dp2-tp2",
    "--cp": "cp2",
    "--pp": "pp2-dp2",
    "--ep": "ep",
    "--dp-shard": "fsdp2-tp2",
    "--zero-optimizer": "zero1 --engine torch",
    "--schedule": "pp2 --schedule gpipe",
    "--virtual-stages": "pp2 --schedule interleaved --virtual-stages 2",
    "--cp-method": "cp2 --cp-method ulysses",
    "--sequence-parallel": "tp2 --sequence-parallel",
    "--recompute": "fsdp --recompute full",
    "--sync-gradients": "fsdp",
    "--comm-hook": "ddp --comm-hook bf16",
    "--bucket-elements": "ddp",
    "--bucket-views": "ddp --bucket-views",
    "--static-graph": "ddp --static-graph",
    "--find-unused": "ddp --find-unused",
}
"""Flags that would make another strategy of a run than the one checked -> how to say it."""


_FOLDERS = frozenset({"--checkpoint-dir", "--resume"})


def check_arguments(arguments: Sequence[str]) -> None:
    """Refuse flags that the strategy says, and checkpoints in an object store: UsageError."""
    for word, following in zip(arguments, (*arguments, "")[1:], strict=True):
        flag, equals, value = word.partition("=")
        if flag in _FOLDERS:
            check_local(value if equals else following, flag)
        if flag in _INSTEAD:
            raise UsageError(
                f"{flag} is said by the strategy, which is checked and predicted with it: choose "
                f"for example --strategy {_INSTEAD[flag]} and leave {flag} out of the arguments."
            )


def is_model_parallel(strategy: Strategy) -> bool:
    """Whether the script itself splits the model (or the sequence)."""
    return strategy.tp * strategy.cp * strategy.pp * strategy.ep > 1


def layout_flags(strategy: Strategy) -> list[str]:
    """The flags that make gpt.py train under `strategy`; none where Accelerate does it all.

    >>> layout_flags(Strategy.parse("pp2-dp2", 4).with_options(schedule="gpipe"))
    ['--pp', '2', '--schedule', 'gpipe']
    """
    return _model_parallel(strategy) if is_model_parallel(strategy) else _data_parallel(strategy)


def _model_parallel(strategy: Strategy) -> list[str]:
    flags: list[str] = []
    if strategy.tp > 1:
        flags += ["--tp", str(strategy.tp)]
        flags += ["--sequence-parallel"] if strategy.sequence_parallel else []
    if strategy.cp > 1:
        flags += ["--cp", str(strategy.cp), "--cp-method", strategy.context.cp_method]
    if strategy.pp > 1:
        flags += ["--pp", str(strategy.pp), "--schedule", strategy.pipeline.schedule]
        if strategy.pipeline.virtual_stages > 1:
            flags += ["--virtual-stages", str(strategy.pipeline.virtual_stages)]
    if strategy.ep > 1:
        flags += ["--ep", str(strategy.ep)]
    if strategy.dp_shard > 1:
        flags += ["--dp-shard", str(strategy.dp_shard)]
    if strategy.recompute != "none":
        flags += ["--recompute", strategy.recompute]
    return flags


def _data_parallel(strategy: Strategy) -> list[str]:
    flags = ["--comm-hook", strategy.ddp.comm_hook] if strategy.ddp.comm_hook else []
    flags += ["--bucket-views"] if strategy.ddp.bucket_views else []
    flags += ["--static-graph"] if strategy.ddp.static_graph else []
    flags += ["--find-unused"] if strategy.ddp.find_unused else []
    backend_name = backend(strategy, _OURS)
    if backend_name == "ddp":
        if strategy.reduce_bucket is not None:
            flags += ["--bucket-elements", str(strategy.reduce_bucket)]
        flags += ["--zero-optimizer"] if strategy.engine == "torch" else []
    if backend_name != "fsdp" and strategy.recompute != "none":  # FSDP's is set from outside
        flags += ["--recompute", strategy.recompute]
    if backend_name in {"ddp", "fsdp"} and strategy.sync_every_micro_batch is not None:
        when = "micro-batch" if strategy.sync_every_micro_batch else "step"
        flags += ["--sync-gradients", when]
    return flags
