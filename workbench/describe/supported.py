"""Which strategies the launcher can start, and the sentence for each that it cannot.

Facts of the libraries that refusals name were read in, or run with, Accelerate 1.15, DeepSpeed
0.19.8 and torch 2.13 (tests/launch/test_strategies.py runs what is allowed).
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping
from typing import Any

from workbench.describe.library_options import Backend, DdpOptions, Scope
from workbench.describe.library_refusals import check_deepspeed, check_fsdp, check_mesh
from workbench.describe.needed import is_met, needs, of_strategy, option_text, sentence, unmet
from workbench.describe.option import annotated, declared
from workbench.describe.strategy import Strategy
from workbench.errors import UsageError

SPLITS = frozenset({"tp", "cp", "pp", "ddp"})
"""What the recipe gpt does itself when told by flags: the launcher starts nothing beyond it."""
RECIPE_PRECISIONS = ("fp32", "bf16", "fp16", "fp8")
"""What the recipe gpt computes in (fp8: see `why_not_in`); any other is a script's own affair."""

_SHARDED = ("fsdp", "fsdp-grad-op")
_DEFAULTS = Strategy(name="").options()
_LIMITED = tuple(
    name
    for name in declared(Strategy)
    if name in needs() or name in annotated(Strategy, Scope) or name == "engine"
)
"""Options of a strategy that not everything reads."""


@functools.cache
def scopes() -> Mapping[str, Scope]:
    """The scope of each option of a strategy that has one."""
    return annotated(Strategy, Scope)


def backend(strategy: Strategy, splits: frozenset[str] | None = None) -> Backend:
    """Who spreads the work. One process asked for as fsdp or zero still runs that library's code.

    >>> backend(Strategy.parse("zero2", 2)), backend(Strategy.parse("tp", 2), frozenset({"tp"}))
    ('deepspeed', 'script')
    """
    if strategy.tp * strategy.cp * strategy.pp * strategy.ep > 1:
        outside = splits is None and strategy.pp == 1 and strategy.ep == 1
        return "mesh" if outside else "script"
    if strategy.zero_stage is not None and strategy.engine != "torch":
        return "deepspeed"
    if strategy.zero_stage is None and (strategy.dp_shard > 1 or strategy.name in _SHARDED):
        return "fsdp"
    return "single" if strategy.world_size == 1 else "ddp"


def why_not(
    strategy: Strategy,
    nodes: int = 1,
    splits: frozenset[str] | None = None,
    device: str = "cuda",
) -> str:
    """Why the launcher does not start this from one host; empty = it does."""
    try:
        check_supported(strategy, splits, device)
    except UsageError as error:
        return str(error)
    if nodes > 1:
        return (
            f"The plan has {nodes} machines, and a form starts this one: use workbench launch "
            f"--nodes {nodes} --address ADDRESS on the first of them, or workbench submit."
        )
    return ""


@functools.cache
def launchable(
    strategy: Strategy, *, any_script: bool = False, precision: str = RECIPE_PRECISIONS[0]
) -> bool:
    """Whether the launcher starts it on GPUs: with any script, or at least with the recipe gpt."""
    only_scripts = any_script or why_not_in(strategy, precision)
    return not why_not(strategy) or not (only_scripts or why_not(strategy, splits=SPLITS))


def why_not_in(strategy: Strategy, precision: str) -> str:
    """Why the recipe gpt does not compute in that precision under a strategy; empty = it does."""
    if precision == "fp8":
        return why_not_fp8(strategy)
    if precision in RECIPE_PRECISIONS:
        return ""
    return f"Only the recipe gpt starts {strategy.name!r}, and it does not compute in {precision}."


def why_not_fp8(strategy: Strategy) -> str:
    """Why the recipe gpt does not compute in fp8 under a strategy; empty = it does.

    >>> why_not_fp8(Strategy.parse("fsdp", 8)), why_not_fp8(Strategy.parse("tp", 2))[:32]
    ('', "'tp' in fp8 is not launched with")
    """
    backend_name = backend(strategy, SPLITS)
    if backend_name == "fsdp" and strategy.fsdp.meta_init:
        return (
            "Accelerate does not send torchao's 8-bit weights from rank 0 (meta init). Leave meta "
            "init out with precision fp8."
        )
    if backend_name in {"single", "ddp"} or (backend_name == "fsdp" and strategy.engine is None):
        return ""
    return (
        f"{strategy.name!r} in fp8 is not launched with the recipe gpt: torchao's 8-bit layers are "
        "tested with single, ddp, fsdp, fsdp-grad-op and hsdp (FSDP2) alone. Use one of these, or "
        "precision bf16."
    )


def check_supported(
    strategy: Strategy, splits: frozenset[str] | None = None, device: str = "cpu"
) -> None:
    """Refuse what cannot be started.

    Args:
        strategy: How the work is to be spread.
        splits: What the recipe does itself when told by flags (`Recipe.splits`); None = a user's
            own script.
        device: ``cuda`` or ``cpu``.

    Raises:
        UsageError: no library does this, or only the script itself can.
    """
    backend_name = backend(strategy, splits)
    _check_degrees(strategy, splits)
    _check_needs(strategy)
    _check_recompute(strategy, backend_name, splits)
    _check_each_option(strategy, backend_name)
    _check_script_options(strategy, backend_name, splits)
    _check_sync(strategy, backend_name)
    if backend_name == "fsdp":
        check_fsdp(strategy, device)
    elif backend_name == "deepspeed":
        check_deepspeed(strategy, device)
    elif backend_name == "mesh":
        check_mesh(strategy, device)


def _check_degrees(strategy: Strategy, splits: frozenset[str] | None) -> None:
    if strategy.ep > 1 and "ep" not in (splits or ()):
        raise UsageError(
            f"{strategy.name!r} needs a script that spreads its own experts. It is launched with "
            "the recipe expert_parallel; for any other, use ep 1."
        )
    axes = [axis for axis in ("tp", "cp", "pp") if getattr(strategy, axis) > 1]
    missing = [] if splits is None else [axis for axis in axes if axis not in splits]
    if missing:
        raise UsageError(
            f"{strategy.name!r} needs a script that splits its own model by {' and '.join(missing)}"
            "; this recipe does not. Use the recipe gpt, or ddp, fsdp or zero1 to zero3."
        )
    if axes and strategy.zero_stage is not None:
        split = "-".join(f"{axis}{getattr(strategy, axis)}" for axis in axes)
        raise UsageError(
            f"{strategy.name!r}: beside {' and '.join(axes)} the launcher shards with FSDP, not "
            f"ZeRO. Use fsdp{strategy.data_ranks}-{split}, or a ZeRO stage alone."
        )
    if strategy.zero_stage is not None and strategy.dp_replicate > 1:
        raise UsageError(
            f"{strategy.name!r}: ZeRO spreads over all data-parallel ranks. Use zero"
            f"{strategy.zero_stage} with {strategy.data_ranks} processes, or hsdp."
        )


def _check_recompute(
    strategy: Strategy, backend_name: Backend, splits: frozenset[str] | None
) -> None:
    if strategy.recompute == "selective" or strategy.recompute_layers is not None:
        raise UsageError(
            "Recomputing only some parts or layers is up to the script. Launch with recompute "
            "'none' or 'full', or build it into the script."
        )
    by_library = backend_name == "fsdp" or (backend_name == "mesh" and strategy.shard_ranks > 1)
    by_recipe = splits is not None and "ddp" in splits
    if strategy.recompute != "none" and not (by_library or by_recipe):
        raise UsageError(
            "Recompute is set from outside for sharded strategies only (FSDP), not for "
            f"{strategy.name!r}. Use fsdp, or do it in the script."
        )


def check_options(strategy: Strategy, option_names: Collection[str]) -> None:
    """Refuse those of the options in `option_names` that neither a library nor a script reads.

    Raises:
        UsageError: one of them changes nothing under this strategy.
    """
    backend_name = backend(strategy)
    for option in ignored(strategy, option_names):
        _check_option(strategy, backend_name, option)
    if "engine" in option_names:
        _check_engine(strategy, backend_name)


def ignored(strategy: Strategy, option_names: Collection[str]) -> tuple[str, ...]:
    """The options in `option_names` that neither a library nor a script reads under it."""
    values = strategy.options()
    return tuple(
        name
        for name in _LIMITED
        if name in option_names and not is_counted(strategy, name, values[name])
    )


def unread(strategy: Strategy) -> dict[str, Any]:
    """The options that neither a library nor a script reads under it, with their defaults."""
    values = strategy.options()
    return {
        name: _DEFAULTS[name]
        for name in _LIMITED
        if values[name] != _DEFAULTS[name] and not is_counted(strategy, name, values[name])
    }


def is_counted(strategy: Strategy, option: str, value: Any) -> bool:
    """Whether a library or a script reads such an option, so that an estimate counts it."""
    scope, backend_name = scopes().get(option), backend(strategy)
    if not is_met(option, of_strategy(strategy)):
        return False
    if option == "engine":
        return not _why_not_engine(strategy, backend_name)
    if scope is None or not scope.set_by:
        return True
    by_script = not scope.among or getattr(strategy, scope.among) > 1
    return is_read(strategy, backend_name, scope) or (
        by_script and scope.script_may(backend_name, value)
    )


def is_read(strategy: Strategy, backend_name: Backend, scope: Scope) -> bool:
    """Whether a launch of the strategy by that backend reads options of that scope."""
    field, value = scope.needs or ("", None)
    return backend_name in scope.set_by and (not field or getattr(strategy, field) == value)


def _check_each_option(strategy: Strategy, backend_name: Backend) -> None:
    for option in scopes():
        if option == "reshard_after_forward" and backend_name == "script" and strategy.pp > 1:
            continue  # what gpt.py's stages do: a micro-batch would gather them again
        _check_option(strategy, backend_name, option)
    _check_engine(strategy, backend_name)


def _check_needs(strategy: Strategy) -> None:
    facts = of_strategy(strategy)
    for option in unmet(scopes(), facts):
        raise UsageError(sentence(option, facts, strategy.name))


def _check_engine(strategy: Strategy, backend_name: Backend) -> None:
    if why := _why_not_engine(strategy, backend_name):
        raise UsageError(why)


def _why_not_engine(strategy: Strategy, backend_name: Backend) -> str:
    if strategy.engine == "fsdp1" and backend_name != "fsdp":
        return f"engine fsdp1 is for fsdp and fsdp-grad-op, not {strategy.name!r}."
    if strategy.engine == "torch" and strategy.zero_stage != 1:
        return (
            f"engine torch is for zero1 (ZeroRedundancyOptimizer), not {strategy.name!r}. Use "
            "fsdp-grad-op (= ZeRO-2) or fsdp (= ZeRO-3), or leave the engine out."
        )
    return ""


def _check_option(strategy: Strategy, backend_name: Backend, option: str) -> None:
    value, scope = strategy.options()[option], scopes().get(option)
    facts = of_strategy(strategy)
    if value == _DEFAULTS[option]:
        return
    if not is_met(option, facts):
        raise UsageError(sentence(option, facts, strategy.name))
    if scope is None or is_read(strategy, backend_name, scope):
        return
    counted = is_counted(strategy, option, value)
    by_script = " of the launch: the script does it itself, and an estimate counts it"
    raise UsageError(
        f"{option_text(option, value)} is an option of {scope.name}; nothing sets it for "
        f"{strategy.name!r}. Leave it out{by_script if counted else ''}."
    )


def _check_script_options(
    strategy: Strategy, backend_name: Backend, splits: frozenset[str] | None
) -> None:
    """What is an argument of a constructor, not of a config file: only our recipes take it."""
    if splits is not None and "ddp" in splits:
        return
    if backend_name in {"ddp", "fsdp"} and strategy.sync_every_micro_batch is not None:
        raise UsageError(
            "sync every micro-batch: Accelerate cannot set it outside the script. Pass "
            "GradientAccumulationPlugin(sync_each_batch=True or False) in the script, or use the "
            "recipe gpt."
        )
    if backend_name != "ddp":
        return
    options = strategy.options()
    of_ddp = (*declared(DdpOptions), "reduce_bucket")
    changed = [name for name in of_ddp if options[name] != _DEFAULTS[name]]
    if changed:
        raise UsageError(
            f"{changed[0].replace('_', ' ')}: Accelerate cannot set it outside the script. Pass "
            "DistributedDataParallelKwargs in the script, or use the recipe gpt."
        )
    if strategy.engine == "torch":
        raise UsageError(
            "zero1 with engine torch: the script makes its optimizer. Construct "
            "ZeroRedundancyOptimizer in the script, or leave the engine out (DeepSpeed)."
        )


def _check_sync(strategy: Strategy, backend_name: Backend) -> None:
    every_micro_batch = strategy.sync_every_micro_batch
    if every_micro_batch is None or backend_name not in {"fsdp", "deepspeed"}:
        return
    partitioned = strategy.zero_stage in {2, 3}
    if backend_name == "deepspeed" and every_micro_batch is not partitioned:
        raise UsageError(
            f"ZeRO-{strategy.zero_stage} "
            + ("reduces after every micro-batch" if partitioned else "reduces once per step")
            + f", whatever is asked. Leave sync every micro-batch ({every_micro_batch}) out."
        )
