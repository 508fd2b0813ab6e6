"""The strategy picker's controls for the front end: what there is to choose, in groups."""

from __future__ import annotations

from typing import Any

from workbench.describe import Strategy
from workbench.describe.library_options import COMM_HOOKS
from workbench.describe.option import DeclaredField
from workbench.describe.strategy import RECOMPUTE
from workbench.describe.supported import why_not
from workbench.planning.pick import GOALS
from workbench_widgets.controls import Field, check, number, of_job, of_option, select
from workbench_widgets.strategy.choice import DECLARED, DEFAULT, FAMILIES, HAND, OFFLOADS, THREE

_GOALS = {
    HAND: "By hand",
    "fit": "To fit: least memory",
    "fast": "Fast: most tokens per second",
    "cheap": "Cheap: least GPU time",
}
_FAMILIES = {
    "single": "One process",
    "ddp": "DDP: a full copy per rank",
    "hsdp": "HSDP: sharded in two groups",
    "tp": "Tensor: slices of each matrix",
    "pp": "Pipeline: blocks in stages",
    "cp": "Context: parts of each sequence",
    "ep": "Experts: spread over the ranks",
    "degrees": "Several at once: degrees",
}
_ENGINES = {
    "default": "FSDP2, DeepSpeed",
    "fsdp1": "FSDP1",
    "torch": "torch (ZeroRedundancyOptimizer)",
}
_SCHEDULES = {
    "1f1b": "1F1B",
    "gpipe": "GPipe",
    "zero-bubble": "zero bubble",
    "naive": "naive: one stage at a time",
}
_HOOKS = {"none": "none: uncompressed", "powersgd": "PowerSGD", "topk": "top-k with error feedback"}
MOST = 1024
_RECOMPUTES = tuple(
    kind
    for kind in RECOMPUTE
    if not why_not(Strategy.parse("fsdp", 2).with_options(recompute=kind))
)
"""Those that a launch can set from outside."""


def fields() -> list[dict[str, Any]]:
    """All groups of controls."""
    options, tuning = _options(), _tuning()
    placed = {control["name"] for control in (*options, *tuning)}
    unplaced = [control_of(field) for name, field in DECLARED.items() if name not in placed]
    return [
        {"title": "Choose", "open": True, "fields": _choose()},
        {"title": "Options", "open": True, "fields": options + unplaced},
        {"title": "Buckets and overlap", "open": False, "fields": tuning},
    ]


def control_of(field: DeclaredField) -> Field:
    """The control of a declared option that is not placed by hand: its help or name labels it."""
    sentence = field.option.help.rpartition(": ")[2].rstrip(".")
    label = sentence if field.is_switch else field.title
    label = label[0].upper() + label[1:]
    if field.is_switch and field.default is None:
        return select(field.name, label, tuple(THREE))
    if field.option.choices and field.default is None:
        return select(field.name, label, (DEFAULT, *field.option.choices))
    return of_option(field, label)


def _choose() -> list[Field]:
    return [
        select("goal", "Strategy", (HAND, *GOALS), _GOALS),
        select("family", "Spread by", FAMILIES, _FAMILIES),
        number("processes", "Processes", most=MOST),
        number("pp", "Pipeline", 1, MOST),
        number("dp", "Replicas", 1, MOST),
        number("fsdp", "Shards", 1, MOST),
        number("cp", "Context", 1, MOST),
        number("tp", "Tensor", 1, MOST),
    ]


def _options() -> list[Field]:
    return [
        select("engine", "Library", tuple(_ENGINES), _ENGINES),
        select("recompute", "Recompute", _RECOMPUTES),
        select("offload", "Offloaded to host memory", tuple(OFFLOADS)),
        of_job("offload_device", "Offload to", {"cpu": "host memory"}),
        select("comm_hook", "Compress gradients", ("none", *COMM_HOOKS), _HOOKS),
        of_job("schedule", "Schedule", _SCHEDULES),
        of_job("virtual_stages", "Pieces per stage"),
        of_job("cp_method", "Context by"),
        of_job("state_dict", "Checkpoints"),
        check("sequence_parallel", "Sequence parallel beside tensor"),
        check("reshard_after_forward", "Free gathered weights after forward"),
    ]


def _tuning() -> list[Field]:
    own = "library's own"
    buckets = {
        "wrap_min_parameters": "Wrap above (parameters)",
        "reduce_bucket": "Reduce bucket (elements)",
        "gather_bucket": "Gather bucket (elements)",
        "live_parameters": "Live parameters",
    }
    return [
        *({**number(name, label), "hint": own} for name, label in buckets.items()),
        select("overlap_gradients", "Overlap with compute", tuple(THREE), {"default": own}),
        select("sync_every_micro_batch", "Sync every micro-batch", tuple(THREE), {"default": own}),
    ]
