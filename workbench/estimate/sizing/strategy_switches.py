"""Single changes of a strategy that lower memory: recompute, sharding, offload, tensor parallelism.

Communication: DDP, ZeRO-1 and ZeRO-2 move 2 bytes-of-parameters per step, FSDP and ZeRO-3 3 (arXiv
1910.02054 section 7). Recompute: full runs the blocks' forward pass twice (at most +1/3; arXiv
2205.05198).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from workbench.describe import Strategy, Workload
from workbench.describe.counting import block_linears
from workbench.describe.supported import unread
from workbench.estimate.context import widths
from workbench.estimate.sizing.change import Change
from workbench.units import format_bytes

STATES = ("parameters", "master copy", "optimizer states", "gradients")


def strategy_changes(workload: Workload, strategy: Strategy) -> Iterator[Change]:
    """Every change of the strategy alone."""
    for family in (_recompute, _sharding, _reduction, _tensor, _offload):
        yield from family(workload, strategy)


def _again(workload: Workload, share: float) -> str:
    """Extra compute, in words, when `share` of the blocks' forward pass runs again.

    With all of it that is the most: the head and each block's last product are not repeated.
    """
    backward = 1 if workload.lora_rank else 2
    how = "at most" if share == 1 else "about"
    return f"{how} {100 * share / (1 + backward):.0f} % more compute"


def _recompute(workload: Workload, strategy: Strategy) -> Iterator[Change]:
    if strategy.recompute != "full" or strategy.recompute_layers is not None:
        all_layers = {} if strategy.recompute_layers is None else {"recompute_layers": None}
        lora = " (a half, not a third: LoRA's backward is short)" if workload.lora_rank else ""
        yield Change(
            strategy={"recompute": "full", **all_layers},
            name="recompute full",
            cost=f"gradient checkpointing, {_again(workload, 1)}: every block runs forward "
            f"twice{lora}",
            in_practice="model.gradient_checkpointing_enable()",
            usual=bool(workload.lora_rank),  # the frozen weights leave little else to save
        )
    if strategy.recompute != "none" or workload.model.kind == "module":
        return
    costs = {
        "attention": (0.05, "the core of eager attention runs twice"),
        "mlp": (_mlp_share(workload), "the MLPs run twice"),
        "op": (0.5, "every second matmul runs twice"),
    }
    practice = {
        "attention": "checkpoint() around the attention core",
        "mlp": "checkpoint() around the MLP",
        "op": "checkpoint() with create_selective_checkpoint_contexts",
    }
    for part, (share, repeated) in costs.items():
        if part == "attention" and workload.attention != "eager":
            continue  # fused attention keeps no scores: nothing to save
        yield Change(
            strategy={"recompute": "selective", "recompute_parts": (part,)},
            name=f"recompute {part}",
            cost=f"{_again(workload, share)}: {repeated}",
            in_practice=practice[part],
        )


def _mlp_share(workload: Workload) -> float:
    """The MLP's share of a block's matmuls, experts counted as often as they are visited."""
    model = workload.model
    total = mlp = 0.0
    for linear in block_linears(model, moe=bool(model.experts)):
        expert = linear.name.startswith("expert_")
        size = linear.inputs * linear.outputs * (model.experts_per_token if expert else 1)
        total += size
        mlp += size if linear.name.split("_")[-1] in {"gate", "up", "down"} else 0
    return mlp / total if total else 0.0


def _sharding(workload: Workload, strategy: Strategy) -> Iterator[Change]:
    ranks, stage = strategy.data_ranks, strategy.zero_stage
    if ranks == 1:
        return
    often = (
        f", and gathers again in each of the {workload.accumulate} micro-batches"
        if workload.accumulate > 1
        else ""
    )
    three = f"1.5 x the bytes communicated{often}"
    all_shards: dict[str, Any] = {"dp_replicate": 1, "dp_shard": ranks}
    fsdp = all_shards | {"zero_stage": None, "reshard_after_forward": True}
    if stage is None and strategy.dp_shard == 1:
        yield _renamed(strategy, all_shards | {"zero_stage": 1}, "the bytes of DDP")
        often_reduced = ", but reduced in every micro-batch" if workload.accumulate > 1 else ""
        cost = f"the bytes of DDP{often_reduced}"
        yield _renamed(strategy, all_shards | {"zero_stage": 2}, cost)
        yield _renamed(strategy, fsdp, three)
    elif stage in {1, 2}:
        if stage == 1:
            cost = "the same bytes; with accumulation they are reduced in every micro-batch"
            yield _renamed(strategy, all_shards | {"zero_stage": 2}, cost)
        yield _renamed(strategy, all_shards | {"zero_stage": 3}, three)
    elif stage is None and strategy.dp_replicate > 1:
        cost = "weights are gathered from all ranks, across nodes, not only within a replica"
        yield _renamed(strategy, fsdp, cost)
    keeps = not strategy.fsdp.reshard_after_forward and strategy.pp == 1
    if stage is None and strategy.dp_shard > 1 and keeps:
        change = {"reshard_after_forward": True}
        yield _renamed(strategy, change, "1.5 x the bytes communicated", "reshard")


def _renamed(strategy: Strategy, change: dict[str, Any], cost: str, label: str = "") -> Change:
    name = layout_name(strategy.with_options(**change))
    removed, dropped = _unread(strategy, change)
    practice = {
        "f": "fully_shard(block) per block, then fully_shard(model)",
        "z": f'DeepSpeed: "zero_optimization": {{"stage": {name[4:5]}}}',
    }
    return Change(
        strategy={"name": name} | change | removed,
        name="reshard after forward" if label else name,
        cost=cost,
        given={"strategy": name} | dropped,
        in_practice=practice.get(name[0], practice["f"]),
    )


def _unread(
    strategy: Strategy, change: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, None]]:
    """What no one reads any more after a change, and which options that leaves out."""
    removed = unread(strategy.with_options(**change))
    return removed, dict.fromkeys(
        name for name in removed if name in strategy.options_beside_name()
    )


def layout_name(strategy: Strategy) -> str:
    """The shortest name of a layout that ``Strategy.parse`` reads.

    >>> layout_name(Strategy.parse("dp2-tp2", 4).with_options(dp_replicate=1, dp_shard=2))
    'fsdp2-tp2'
    """
    replicate, shard, stage = strategy.dp_replicate, strategy.dp_shard, strategy.zero_stage
    split = {"tp": strategy.tp, "cp": strategy.cp, "pp": strategy.pp, "ep": strategy.ep}
    others = [f"{word}{degree}" for word, degree in split.items() if degree > 1]
    if not others and (replicate == 1 or shard == 1):
        if stage is not None:
            return f"zero{stage}"
        if shard > 1:
            return "fsdp" if strategy.fsdp.reshard_after_forward else "fsdp-grad-op"
        return "ddp" if replicate > 1 else "single"
    sharded = f"zero{stage}x{shard}" if stage is not None else f"fsdp{shard}"
    first = [f"dp{replicate}"] if replicate > 1 else []
    return "-".join([*first, *([sharded] if shard > 1 else []), *others])


def _reduction(workload: Workload, strategy: Strategy) -> Iterator[Change]:
    plain = strategy.dp_shard == 1 and strategy.zero_stage is None
    if plain and strategy.dp_replicate > 1 and not strategy.ddp.bucket_views:
        yield Change(
            strategy={"bucket_views": True},
            name="gradients as bucket views",
            cost="none; gradients must not be detached or replaced",
            in_practice="DistributedDataParallel(..., gradient_as_bucket_view=True)",
        )
    if strategy.sync_every_micro_batch is False and workload.accumulate > 1 and not plain:
        yield Change(
            strategy={"sync_every_micro_batch": True},
            name="reduce every micro-batch",
            cost=f"gradients are reduced {workload.accumulate} times per step instead of once",
            in_practice="no set_requires_gradient_sync(False), no no_sync()",
        )


def _tensor(workload: Workload, strategy: Strategy) -> Iterator[Change]:
    if strategy.tp > 1 and not strategy.sequence_parallel and workload.model.kind != "module":
        yield Change(
            strategy={"sequence_parallel": True},
            name="sequence parallel",
            cost="the same bytes: all-reduce becomes reduce-scatter and all-gather",
            in_practice="SequenceParallel() on the norms of the tensor-parallel plan",
        )


def _offload(workload: Workload, strategy: Strategy) -> Iterator[Change]:
    offloaded = set(strategy.offload)
    stage, single = strategy.zero_stage, strategy.world_size == 1
    paged = "paged" in workload.optimizer  # bitsandbytes moves its states to the host itself
    if not paged and "optimizer" not in offloaded and (stage is not None or single):
        how = "torchao.optim.CPUOffloadOptimizer" if stage is None else '"offload_optimizer"'
        yield _moved(workload, strategy, ("optimizer",), how)
    sharded = stage == 3 or (stage is None and strategy.dp_shard > 1)
    if not paged and "parameters" not in offloaded and sharded:
        how = '"offload_param" + "offload_optimizer"' if stage else "CPUOffloadPolicy()"
        yield _moved(workload, strategy, ("optimizer", "parameters"), how)
    if single and stage is None and not offloaded and not paged:
        third: dict[str, Any] = {"name": "zero3", "zero_stage": 3}
        removed, dropped = _unread(strategy, third)
        third |= removed
        layout, states = strategy.with_options(**third), ("optimizer", "parameters")
        moved = _moved(workload, layout, states, 'DeepSpeed: "offload_param"')
        yield replace(
            moved,
            strategy=third | dict(moved.strategy),
            given={"strategy": "zero3", "gpus": 1, **moved.strategy} | dropped,
            name="ZeRO-3 offload",
        )
    if "activations" not in offloaded and strategy.pp == 1 and workload.model.kind != "module":
        offload = tuple(dict.fromkeys((*strategy.offload, "activations")))
        yield Change(
            strategy={"offload": offload},
            name="offload activations",
            cost="everything kept for backward crosses PCIe twice per micro-batch",
            in_practice="with torch.autograd.graph.save_on_cpu(pin_memory=True)",
            on_host=("activations: blocks",),
        )


def _moved(
    workload: Workload, strategy: Strategy, states: tuple[str, ...], in_practice: str
) -> Change:
    offload = tuple(dict.fromkeys((*states, *strategy.offload)))
    with_weights = "parameters" in states
    size = format_bytes(_traffic(workload, strategy, with_weights=with_weights))
    return Change(
        strategy={"offload": offload},
        name=f"offload {' + '.join(states)}",
        cost=f"about {size} over PCIe per step and GPU, and the update runs on the host's CPU",
        in_practice=in_practice,
        on_host=STATES if with_weights else ("master copy", "optimizer states"),
    )


def _traffic(workload: Workload, strategy: Strategy, *, with_weights: bool) -> float:
    """Gradients down and weights up once per step; offloaded weights twice per micro-batch."""
    width = widths(workload, strategy)
    split = strategy.tp * strategy.pp * strategy.shard_ranks
    elements = workload.model.parameters / split
    trained = 0.0 if workload.lora_rank else elements
    stored = width.quantized if workload.lora_rank else width.weight
    traffic = trained * (width.gradient + width.weight)
    if with_weights:
        traffic = trained * width.gradient + 2 * workload.accumulate * elements * stored
    return traffic
