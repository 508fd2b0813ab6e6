"""The fields that rules speak of: those of a `Job`, and what trainers state in their place.

Beside the options of a job these are derived from it, and back:

- ``data_parallel``: replicated, fsdp, fsdp-grad-op, zero1, zero2 or zero3, where only the kind is
  stated and the number of ranks follows from the machines;
- ``global_batch``, ``local_batch`` and ``pipeline_batch``: batches in sequences;
- ``lora``: whether adapters are trained, and ``lora_attention``, ``lora_mlp``, ``lora_head`` where
  they are stated apart; ``offload_optimizer``, ``offload_parameters``,
  ``offload_activations``: each part alone;
- ``model_text`` and ``model_id``: what names the model; ``model.hidden`` …: its shape;
- ``positions``: the longest sequence that a model is built for; ``world_size``: ranks;
  ``device``: cuda or cpu.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping
from dataclasses import fields as fields_of
from dataclasses import replace
from typing import Any

from workbench.describe import Cluster, Strategy
from workbench.describe.catalog import every_published
from workbench.describe.hardware import device_of
from workbench.describe.implementation import ImplementationAssumptions
from workbench.describe.job import Job, options
from workbench.describe.model import Model
from workbench.describe.option import declared
from workbench.describe.strategy import DEGREES
from workbench.describe.supported import is_counted, scopes
from workbench.describe.workload import Workload
from workbench.errors import UsageError
from workbench.trainer_configs.document import Document

_TOLD = ("recompute", "offload")
"""Options without which others say nothing."""
_OFFLOADS = ("optimizer", "parameters", "activations")
_ATTENTION = ("q", "k", "v", "o")
_MLP = ("gate", "up", "down")
_SHAPE = "model."
_SHAPE_NEEDS = frozenset({"layers", "hidden", "heads", "vocab", "mlp_hidden"})
_REPOSITORY = re.compile(r"Hugging Face (\S+/\S+), config\.json")
_DENSE_FIRST = re.compile(r"\(?\[0\](?:\*(\d{1,4}))?\+\[1\](?:\*\d{1,4})?\)?")
_WORDS = {"dp_replicate": "dp", "dp_shard": "fsdp", "tp": "tp", "cp": "cp", "pp": "pp"}


def job_fields(job: Job, model_text: str | None = None) -> dict[str, Any]:
    """Every field of a job that a rule may write."""
    workload, strategy = job.workload, job.strategy
    values = {name: getattr(workload, name) for name in declared(Workload)}
    values |= {
        name: getattr(workload.kernels, name) for name in declared(ImplementationAssumptions)
    }
    values |= strategy.options()
    per_rank = workload.micro_batch * workload.accumulate
    piped = strategy.pp > 1
    values |= {
        "data_parallel": data_parallel(strategy),
        "global_batch": per_rank * strategy.data_ranks,
        "local_batch": per_rank if piped else workload.micro_batch,
        "pipeline_batch": workload.micro_batch if piped else None,
        "recompute_some": strategy.recompute_layers is not None,
        "lora": workload.lora_rank > 0,
        "lora_attention": tuple(
            lora_target for lora_target in workload.lora_targets if lora_target in _ATTENTION
        ),
        "lora_mlp": "gate" in workload.lora_targets,
        "lora_head": "head" in workload.lora_targets,
        **{f"offload_{part}": part in strategy.offload for part in _OFFLOADS},
        "model_text": model_text or repository_of(workload.model),
        "model_id": catalog_id(workload.model),
        "positions": workload.model.max_positions or workload.seq_len,
        "world_size": strategy.world_size,
        "device": device_of(job.cluster),
    }
    shape = workload.model
    values |= {
        f"{_SHAPE}grouped": shape.key_value_heads != shape.heads,
        f"{_SHAPE}mla": shape.kv_lora_rank > 0,
        f"{_SHAPE}moe_pattern": f"[0]*{shape.dense_layers}+[1]*{shape.layers - shape.dense_layers}",
    }
    return values | {
        f"{_SHAPE}{field.name}": getattr(shape, field.name) for field in fields_of(shape)
    }


def data_parallel(strategy: Strategy) -> str:
    """How data-parallel ranks hold the states; hsdp: sharded in groups that are replicated.

    >>> data_parallel(Strategy.parse("zero2", 4)), data_parallel(Strategy.parse("ddp", 4))
    ('zero2', 'replicated')
    """
    if strategy.zero_stage is not None:
        return f"zero{strategy.zero_stage}"
    if strategy.shard_ranks > 1 and strategy.dp_replicate > 1:
        return "hsdp"
    sharded = strategy.shard_ranks > 1 or strategy.name in {"fsdp", "fsdp-grad-op"}
    return "fsdp" if sharded else "replicated"


@functools.cache
def catalog_id(model: Model) -> str | None:
    """The catalog's first name of a model of this shape; None = not in it."""
    for row in every_published():
        if replace(model, name=row.model.name) == row.model:
            return row.id
    return None


def repository_of(model: Model) -> str | None:
    """The Hugging Face repository that the catalog's shape was read from; None = not known."""
    model_id = catalog_id(model)
    rows = [row for row in every_published() if replace(model, name=row.model.name) == row.model]
    rows.sort(key=lambda row: (row.model.name != model.name, row.id != model_id))
    matches = (_REPOSITORY.match(row.source) for row in rows)
    return next((match[1] for match in matches if match), None)


def placement_of(job: Job) -> dict[str, Any]:
    """The options that put another job on the same machines."""
    cluster, world = job.cluster, job.strategy.world_size
    if not isinstance(cluster, Cluster):
        return {"gpus": world, "cpu": cluster == "cpu"}
    card = cluster.accelerator
    where: dict[str, Any] = {"gpus": world // cluster.nodes, "nodes": cluster.nodes}
    return where if card is None else where | {"gpu": card.id}


def job_options(
    values: Mapping[str, Any], typed_options: Mapping[str, Any], document: Document
) -> dict[str, Any]:
    """The options of a job from what was read; what is given beside it counts.

    Raises:
        UsageError: the degrees do not fit the machines, or the batches not the degrees.
    """
    read = {name: value for name, value in values.items() if value is not None}
    read |= _offload(read)
    if "lora_attention" in read or read.get("lora_mlp"):
        targets = (*read.get("lora_attention", ()), *_MLP * bool(read.get("lora_mlp")))
        read["lora_targets"] = (*targets, *("head",) * bool(read.get("lora_head")))
    if read.get("lora") is False:
        read |= {"lora_rank": 0}
        read.pop("lora_targets", None)
    strategy = None
    if typed_options.get("strategy") is None:
        strategy = _strategy(read, typed_options, document)
        read |= _batches(read, typed_options, strategy, document)
    else:
        chosen = typed_strategy(read, typed_options)
        read = {name: value for name, value in read.items() if name not in scopes()}
        read |= _batches(read, typed_options, chosen, document)
    recognised = {name: value for name, value in read.items() if name in options()}
    options_read = recognised | {
        name: value for name, value in typed_options.items() if value is not None
    }
    if strategy is not None:
        told = {name: options_read[name] for name in _TOLD if name in options_read}
        facts = replace(strategy, **told)
        options_read = {
            name: value
            for name, value in options_read.items()
            if name in typed_options or is_counted(facts, name, value)
        }
        nodes = int(options_read.get("nodes") or 1)
        options_read |= {"strategy": strategy}
        options_read.setdefault("gpus", max(1, strategy.world_size // nodes))
    if "model" not in options_read and (model := _model(read)) is not None:
        options_read["model"] = model
    return options_read


def _offload(read: Mapping[str, Any]) -> dict[str, Any]:
    stated = {part: read[f"offload_{part}"] for part in _OFFLOADS if f"offload_{part}" in read}
    return {"offload": tuple(part for part, is_so in stated.items() if is_so)} if stated else {}


def _model(read: Mapping[str, Any]) -> Any:
    if model_text := read.get("model_id") or read.get("model_text"):
        return model_text
    shape = {name[len(_SHAPE) :]: value for name, value in read.items() if name.startswith(_SHAPE)}
    for derived in ("grouped", "mla"):
        shape.pop(derived, None)
    shape["dense_layers"] = dense_layers(shape.pop("moe_pattern", "")) or 0
    if not set(shape) >= _SHAPE_NEEDS:
        return None
    values: dict[str, Any] = {"name": f"{shape['layers']} layers, {shape['hidden']} wide", **shape}
    return Model(**values)


def dense_layers(pattern: str) -> int | None:
    """Blocks without experts before those with, as Megatron-LM writes it; None = otherwise.

    >>> dense_layers("([0]*3+[1]*58)"), dense_layers("[0]+[1]*26"), dense_layers("([0,1]*24)")
    (3, 1, None)
    """
    match = _DENSE_FIRST.fullmatch(pattern.replace(" ", ""))
    return None if match is None else int(match[1] or 1)


def _strategy(
    read: Mapping[str, Any], typed_options: Mapping[str, Any], document: Document
) -> Strategy:
    """The layout on so many GPUs as are given, else as the file's degrees need."""
    kind = str(read.get("data_parallel", "replicated"))
    sharded = kind.startswith(("fsdp", "zero"))
    degrees = {name: int(read.get(name, 1)) for name in DEGREES}
    if kind == "replicated" and degrees["cp"] > 1:
        document.notes.append("states that are replicated beside cp are read as sharded over it")
    for name, degree in degrees.items():
        if degree < 1:
            raise UsageError(f"{document.name}: {name} is {degree}; allowed: 1 or more.")
    free = "dp_shard" if sharded else "dp_replicate"
    product = math.prod(degrees[name] for name in _WORDS)
    world = _world(read, typed_options)
    if world is None:
        copies = degrees["dp_replicate"] * degrees["dp_shard"]
        stated = {"dp_replicate", "dp_shard"} & set(read)
        ranks = None if stated else implied_data_ranks(read)
        world = product if ranks is None else product // copies * ranks
        if ranks is None and free not in read:  # the experts may need more
            experts = degrees["ep"] * int(read.get("expert_tp") or 1)
            world *= experts // math.gcd(experts, product // degrees["pp"])
    if world % product:
        stated = ", ".join(f"{name} {value}" for name, value in degrees.items() if value > 1)
        raise UsageError(
            f"{document.name}: its degrees ({stated}) multiply to {product}, which does not divide "
            f"{world} GPUs. Change --gpus or --nodes, or a degree in the file."
        )
    if world > product:
        if free in read:
            raise UsageError(
                f"{document.name}: its degrees multiply to {product}, and {world} GPUs are given. "
                "Change --gpus or --nodes, or a degree in the file."
            )
        degrees[free] *= world // product
    stage = int(kind[-1]) if kind.startswith("zero") else None
    try:
        return named_strategy(degrees, stage, sharded=sharded)
    except UsageError as error:
        raise UsageError(f"{document.name}: {error}") from error


def implied_data_ranks(read: Mapping[str, Any]) -> int | None:
    """Data-parallel ranks by which a stated global batch is micro-batch x accumulation.

    None: the file does not state all three, or they do not divide.

    >>> implied_data_ranks({"micro_batch": 1, "accumulate": 32, "global_batch": 256})
    8
    """
    global_batch, micro, accumulate = (
        read.get(k) for k in ("global_batch", "micro_batch", "accumulate")
    )
    if not (global_batch and micro and accumulate):
        return None
    ranks, rest = divmod(int(global_batch), int(micro) * int(accumulate))
    return ranks if ranks and not rest else None


def unequal_batches(global_batch: int, micro: int, accumulate: int, ranks: int) -> str:
    """Why three stated batches cannot be on so many data-parallel ranks; "" = they can.

    >>> unequal_batches(256, 4, 8, 4)
    '256, but micro-batch 4 x accumulation 8 x 4 data-parallel ranks is 128. Set it to 128, or \
leave one of the three out ("auto"); it fits 8 ranks.'
    """
    product = micro * accumulate * ranks
    if product == global_batch:
        return ""
    fitting, rest = divmod(global_batch, micro * accumulate)
    fits = f"; it fits {fitting} ranks" if fitting and not rest else ""
    return (
        f"{global_batch}, but micro-batch {micro} x accumulation {accumulate} x {ranks} "
        f"data-parallel ranks is {product}. Set it to {product}, or leave one of the three out "
        f'("auto"){fits}.'
    )


def _world(read: Mapping[str, Any], typed_options: Mapping[str, Any]) -> int | None:
    gpus, nodes = typed_options.get("gpus"), typed_options.get("nodes")
    if gpus is not None:
        return int(gpus) * int(nodes or read.get("nodes") or 1)
    if "gpus" in read:
        return int(read["gpus"]) * int(nodes or read.get("nodes") or 1)
    return int(read["world_size"]) if "world_size" in read else None


def named_strategy(
    degrees: Mapping[str, int], stage: int | None, *, sharded: bool = False
) -> Strategy:
    """A strategy under the name that people would type for it.

    >>> named_strategy({"tp": 2, "dp_shard": 4}, None).name, named_strategy({"dp_shard": 8}, 3).name
    ('fsdp4-tp2', 'zero3')
    >>> named_strategy({"cp": 8}, 1).name  # ZeRO spreads over the ranks of cp, too
    'zero1x1-cp8'
    """
    split = {name: degrees.get(name, 1) for name in _WORDS}
    of_zero = {"dp_shard"} if stage is not None and split["cp"] > 1 else set[str]()
    above = [name for name, degree in split.items() if degree > 1 or name in of_zero]
    words = dict(_WORDS) if stage is None else _WORDS | {"dp_shard": f"zero{stage}x"}
    experts = f"-ep{degrees['ep']}" if degrees.get("ep", 1) > 1 else ""
    name = "-".join(f"{words[axis]}{split[axis]}" for axis in above or ["dp_shard"]) + experts
    world = math.prod(split.values())
    plain = {"dp_replicate": "ddp", "dp_shard": "fsdp" if stage is None else f"zero{stage}"}
    if not experts and len(above) == 1:
        name = plain.get(above[0], above[0])
    elif not above and not experts:
        name = plain["dp_shard"] if sharded else "single"
    return Strategy.parse(name, world)


def typed_strategy(read: Mapping[str, Any], typed_options: Mapping[str, Any]) -> Strategy | None:
    """The strategy that is given beside a file; None where none is, or its ranks are not known."""
    strategy = typed_options.get("strategy")
    if isinstance(strategy, Strategy):
        return strategy
    try:
        ranks = Strategy.ranks_of(str(strategy)) or _world(read, typed_options)
        return None if ranks is None else Strategy.parse(str(strategy), ranks)
    except (UsageError, ValueError):
        return None


def _batches(
    read: Mapping[str, Any],
    typed_options: Mapping[str, Any],
    strategy: Strategy | None,
    document: Document,
) -> dict[str, Any]:
    """Micro-batch and accumulation, from the batches that the trainer states."""
    batches: dict[str, Any] = {}
    piped = strategy is not None and strategy.pp > 1
    local = read.get("local_batch")
    if local is not None:
        batches["micro_batch"] = int(read.get("pipeline_batch") or 1) if piped else local
    micro = typed_options.get("micro_batch") or batches.get("micro_batch", read.get("micro_batch"))
    if micro is None:
        return batches | _divided(read, typed_options, strategy, document)
    if typed_options.get("accumulate") is not None:
        return batches
    if int(micro) < 1:
        raise UsageError(f"{document.name}: the micro-batch is {micro}; allowed: 1 or more.")
    if strategy is None and local is None:
        return batches  # over how many ranks a global batch is divided is not known
    ranks = 1 if strategy is None else strategy.data_ranks
    global_batch = read.get("global_batch")
    if global_batch is None:
        if local is None:
            return batches
        global_batch = local * ranks
    if strategy is not None and typed_options.get("micro_batch") is None:
        _check_product(read, ranks, document)
    accumulate, rest = divmod(int(global_batch), int(micro) * ranks)
    if strategy is not None and (rest or not accumulate):
        raise UsageError(
            f"{document.name}: a global batch of {global_batch} is not a multiple of the "
            f"micro-batch {micro} x {ranks} data-parallel ranks. Change the batch, or --gpus."
        )
    return {**batches, "accumulate": max(1, accumulate)}


def _check_product(read: Mapping[str, Any], ranks: int, document: Document) -> None:
    """Refuse three batches in a file that contradict each other on so many ranks."""
    stated = [read.get(name) for name in ("global_batch", "micro_batch", "accumulate")]
    if None in stated:
        return
    global_batch, micro, accumulate = (int(value or 0) for value in stated)
    if problem := unequal_batches(global_batch, micro, accumulate, ranks):
        raise UsageError(f"{document.name}: its global batch is {problem}")


def _divided(
    read: Mapping[str, Any],
    typed_options: Mapping[str, Any],
    strategy: Strategy | None,
    document: Document,
) -> dict[str, Any]:
    """The micro-batch where only the global batch is stated, as DeepSpeed divides it.

    Raises:
        UsageError: it does not divide.
    """
    global_batch = read.get("global_batch")
    if global_batch is None or strategy is None:
        return {}
    accumulate = int(typed_options.get("accumulate") or read.get("accumulate") or 1)
    ranks = strategy.data_ranks
    micro, rest = divmod(int(global_batch), accumulate * ranks)
    if rest or not micro:
        raise UsageError(
            f"{document.name}: a global batch of {global_batch} is not a multiple of {ranks} "
            f"data-parallel ranks x {accumulate} micro-batches. Change the batch, or --gpus."
        )
    return {"micro_batch": micro, "accumulate": accumulate}
