"""Reads an existing Accelerate config file or DeepSpeed JSON back into a `Strategy`.

What the launcher itself writes comes back equal (but for options that are flags of a script, which
no config file has). Keys without a field in `Strategy` (optimizers, machine addresses, prefetch
policies) are kept and named, never dropped in silence.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workbench.describe import Strategy
from workbench.describe.checks import require_instance
from workbench.errors import UsageError
from workbench.launching.prepare.accelerate_config import FSDP_KEYS
from workbench.launching.prepare.deepspeed_batches import check_batches_of
from workbench.launching.prepare.deepspeed_config import GATHERS_ON_SAVE, NVME_PATH
from workbench.trainer_configs.config_fields import Reader, load

_KINDS = {
    kind: kind
    for kind in ("NO", "MULTI_GPU", "MULTI_CPU", "MULTI_XPU", "MULTI_NPU", "FSDP", "DEEPSPEED")
}
_STAGES = {"0": None, "1": 1, "2": 2, "3": 3}
_DEVICES = {"NONE": None, "CPU": "cpu", "NVME": "nvme"}
# FSDP1's strategies, by name and by the number of torch's ShardingStrategy.
_RESHARD = {
    "FULL_SHARD": True,
    "SHARD_GRAD_OP": False,
    "HYBRID_SHARD": True,
    "HYBRID_SHARD_ZERO2": False,
    "1": True,
    "2": False,
    "4": True,
    "5": False,
}
_HYBRID = {"HYBRID_SHARD", "HYBRID_SHARD_ZERO2", "4", "5"}
_STATE_DICTS = {
    "SHARDED_STATE_DICT": "sharded",
    "FULL_STATE_DICT": "full",
    "3": "sharded",
    "1": "full",
}
_WRAPS = {"TRANSFORMER_BASED_WRAP": "class", "SIZE_BASED_WRAP": "size", "NO_WRAP": "none"}
# Keys that every file has, and keys that say nothing while they have these values.
_EXPECTED_KEYS = (
    *("compute_environment", "num_machines", "machine_rank", "use_cpu", "same_network"),
    *("rdzv_backend", "main_training_function"),
)
_TRIVIAL: dict[str, Any] = {
    "mixed_precision": "no",
    "gpu_ids": "all",
    "dynamo_backend": "NO",
    "debug": False,
    "downcast_bf16": "no",
    "enable_cpu_affinity": False,
    "main_process_port": None,
}


def read_strategy(
    path: str | Path, processes: int | None = None
) -> tuple[Strategy, dict[str, Any]]:
    """The strategy that a config file asks for, and its keys that no strategy has a field for.

    Args:
        path: Accelerate's YAML (or JSON), or a DeepSpeed JSON.
        processes: Ranks; a DeepSpeed JSON does not say (default: 1, or what its batch sizes imply).

    Raises:
        UsageError: the file is none of these, or a value in it cannot be; says file and key.
    """
    require_instance("path", (str, Path), path, "the path of a config file, as 'accelerate.yaml'")
    path = Path(path)
    values = load(path)
    if "zero_optimization" in values or "train_micro_batch_size_per_gpu" in values:
        return _read_deepspeed(path, values, processes)
    if "distributed_type" not in values:
        raise UsageError(
            f"{path}: has neither distributed_type (an accelerate config) nor zero_optimization (a "
            "DeepSpeed JSON). Give the file that accelerate config wrote, or DeepSpeed's."
        )
    return _read_accelerate(path, values, processes)


def _read_accelerate(
    path: Path, values: Mapping[str, Any], processes: int | None
) -> tuple[Strategy, dict[str, Any]]:
    top = Reader(path, values)
    kind: str = top.choice("distributed_type", _KINDS)
    recorded = top.values.get("num_processes")
    if (recorded is None or recorded == -1) and kind == "NO":
        top.values["num_processes"] = 1
    count = processes or top.number("num_processes")
    if count is None:
        raise top.wrong("num_processes", "the number of ranks")
    top.known |= {*_EXPECTED_KEYS, "num_processes"}
    top.known |= {key for key, value in _TRIVIAL.items() if top.values.get(key) == value}
    sections = {key: top.part(f"{key}_config") for key in ("fsdp", "deepspeed", "parallelism")}
    if kind == "DEEPSPEED":
        strategy, unknown_keys = _read_zero_section(sections["deepspeed"], count)
    else:
        machines = top.number("num_machines") or 1
        degrees = _degrees(sections["parallelism"], count, sharded=kind == "FSDP")
        options = _fsdp(sections["fsdp"], degrees, machines) if kind == "FSDP" else {}
        strategy, unknown_keys = _named(degrees, options, sharded=kind == "FSDP"), {}
    for part in (top, *sections.values()):
        unknown_keys |= dict(part.unknown())
    return strategy, unknown_keys


def _degrees(mesh: Reader, count: int, *, sharded: bool) -> dict[str, Any]:
    """Degrees of a parallelism_config; without one, all ranks shard (FSDP) or replicate."""
    prefix = "parallelism_config_"
    names = {
        "dp_replicate": "dp_replicate_size",
        "dp_shard": "dp_shard_size",
        "tp": "tp_size",
        "cp": "cp_size",
    }
    degrees = {field: mesh.number(prefix + key) or 1 for field, key in names.items()}
    ulysses = mesh.number(prefix + "sp_size") or 1
    degrees["cp"] *= ulysses  # Accelerate has one or the other
    trivial = {"cp_backend": "torch", "sp_backend": "deepspeed", "cp_comm_strategy": "alltoall"}
    for key, value in trivial.items():
        if mesh.values.get(prefix + key) == value:
            mesh.known.add(prefix + key)
    product = math.prod(degrees.values())
    if product == 1:
        return {**degrees, "dp_shard" if sharded else "dp_replicate": count}
    if product != count:
        raise UsageError(
            f"{mesh.path}: the sizes in parallelism_config multiply to {product}, num_processes is "
            f"{count}. Make them equal."
        )
    return {**degrees, "cp_method": "ulysses" if ulysses > 1 else "ring"}


def _fsdp(section: Reader, degrees: dict[str, Any], machines: int) -> dict[str, Any]:
    """Options of an fsdp_config; FSDP1's hybrid changes the degrees."""
    section.values = {
        key if key.startswith("fsdp_") else f"fsdp_{key}": value
        for key, value in section.values.items()
    }
    old = section.choice("fsdp_version", {"1": True, "2": False}) is not False
    options: dict[str, Any] = {"engine": "fsdp1" if old else None}
    if old:
        options |= _fsdp1(section, degrees, machines)
    else:
        options["reshard_after_forward"] = section.flag("fsdp_reshard_after_forward") is not False
    options["recompute"] = "full" if section.flag("fsdp_activation_checkpointing") else "none"
    options["offload"] = ("optimizer", "parameters") * bool(section.flag("fsdp_offload_params"))
    options["offload"] += ("activations",) * bool(
        section.flag("fsdp_activation_checkpointing_offload")
    )
    for option, fsdp_key in FSDP_KEYS.items():
        chosen = (
            section.choice(fsdp_key.key, fsdp_key.words)
            if fsdp_key.words
            else section.flag(fsdp_key.key)
        )
        options[option] = fsdp_key.absent if chosen is None else chosen
    if str(section.values.get("fsdp_state_dict_type")) not in {"LOCAL_STATE_DICT", "2"}:
        kind = section.choice("fsdp_state_dict_type", _STATE_DICTS)
        options["state_dict"] = kind or ("full" if old else "sharded")
    if section.values.get("fsdp_auto_wrap_policy") != "NO_WRAP":
        wrap = section.choice("fsdp_auto_wrap_policy", _WRAPS)
        if wrap == "size":
            options["wrap_min_parameters"] = section.number("fsdp_min_num_params") or 100_000_000
    synchronised = section.values.get("fsdp_sync_module_states")
    if old and (synchronised is None or synchronised == options["meta_init"]):
        section.known.add("fsdp_sync_module_states")
    return options


def _fsdp1(section: Reader, degrees: dict[str, Any], machines: int) -> dict[str, Any]:
    used = "fsdp_sharding_strategy"
    if used not in section.values:
        used = "fsdp_reshard_after_forward"
    value = str(section.values.get(used, "FULL_SHARD")).upper()
    for key, expected in (("fsdp_use_orig_params", "true"), ("fsdp_forward_prefetch", "false")):
        if str(section.values.get(key)).lower() == expected:
            section.known.add(key)
    if value in {"NO_SHARD", "3"}:  # DDP by another name; the key stays among the kept ones
        degrees |= {"dp_replicate": degrees["dp_shard"], "dp_shard": 1}
        return {"engine": None}
    if value in _HYBRID and machines > 1:  # shards within a machine, replicates between them
        if degrees["dp_shard"] % machines:
            raise UsageError(
                f"{section.path}: {value} shards within each machine; num_machines {machines} does "
                f"not divide its {degrees['dp_shard']} ranks. Change one of them."
            )
        degrees |= {"dp_replicate": machines, "dp_shard": degrees["dp_shard"] // machines}
    return {"reshard_after_forward": section.choice(used, _RESHARD) is not False}


def _named(degrees: dict[str, Any], options: dict[str, Any], *, sharded: bool) -> Strategy:
    """The strategy under the name that people would type for it."""
    ranks = {key: degrees[key] for key in ("dp_replicate", "dp_shard", "tp", "cp")}
    words = {"dp_replicate": "dp", "dp_shard": "fsdp", "tp": "tp", "cp": "cp"}
    above = [key for key, degree in ranks.items() if degree > 1]
    plain = {"dp_replicate": "ddp", "dp_shard": "fsdp", "tp": "tp", "cp": "cp"}
    name = "-".join(f"{words[key]}{ranks[key]}" for key in above)
    if len(above) == 1:
        name = plain[above[0]]
    elif not above:
        name = "fsdp" if sharded and ranks["dp_replicate"] == 1 else "single"
    elif above == ["dp_replicate", "dp_shard"] and ranks["dp_replicate"] == 2:
        name = "hsdp"
    if name == "fsdp" and not options.get("reshard_after_forward", True):
        name = "fsdp-grad-op"
    return Strategy(name=name).with_options(**degrees, **options)


def _read_zero_section(section: Reader, count: int) -> tuple[Strategy, dict[str, Any]]:
    """A deepspeed_config: its own few keys, or the JSON file that it names."""
    if section.flag("zero3_init_flag"):
        section.known.discard("zero3_init_flag")  # the script's to know: kept
    if section.values.get("deepspeed_multinode_launcher") == "standard":
        section.known.add("deepspeed_multinode_launcher")
    name = section.take("deepspeed_config_file")
    if name is not None:
        file = section.path.parent / str(name)
        strategy, unknown_keys = _read_deepspeed(file, load(file), count)
        prefix = f"{section.prefix}deepspeed_config_file."
        return strategy, {prefix + key: value for key, value in unknown_keys.items()}
    stage = section.choice("zero_stage", _STAGES) if "zero_stage" in section.values else 2
    devices = {
        part: section.choice(f"offload_{key}_device", _DEVICES)
        for part, key in (("optimizer", "optimizer"), ("parameters", "param"))
    }
    return _zero(stage, count, devices, {}), {}


def _zero(
    stage: int | None, count: int, devices: dict[str, str | None], options: dict[str, Any]
) -> Strategy:
    if stage is None:  # DeepSpeed without ZeRO spreads as DDP does
        return Strategy.parse("ddp" if count > 1 else "single", count)
    offload = tuple(part for part, device in devices.items() if device)
    return Strategy.parse(f"zero{stage}", count).with_options(
        offload=offload,
        offload_device="nvme" if "nvme" in devices.values() else "cpu",
        **options,
    )


def _read_deepspeed(
    path: Path, values: Mapping[str, Any], processes: int | None
) -> tuple[Strategy, dict[str, Any]]:
    top = Reader(path, values)
    zero = top.part("zero_optimization")
    stage = zero.choice("stage", _STAGES)
    options = {
        "overlap_gradients": zero.flag("overlap_comm"),
        "reduce_bucket": zero.number("reduce_bucket_size"),
        "gather_bucket": zero.number(
            "stage3_prefetch_bucket_size" if stage == 3 else "allgather_bucket_size"
        ),
        "live_parameters": zero.number("stage3_max_live_parameters"),
    }
    if stage == 3 and zero.values.get(GATHERS_ON_SAVE) is True:
        zero.known.add(GATHERS_ON_SAVE)  # written at this stage anyway
    devices: dict[str, str | None] = {}
    parts = [top, zero]
    for part, key in (("optimizer", "offload_optimizer"), ("parameters", "offload_param")):
        inner = zero.part(key)
        devices[part] = inner.choice("device", _DEVICES)
        inner.flag("pin_memory")
        if inner.values.get("nvme_path") == NVME_PATH:
            inner.known.add("nvme_path")
        parts.append(inner)
    if zero.flag("cpu_offload"):  # the spelling of DeepSpeed before 0.4
        devices["optimizer"] = "cpu"
    top.flag("zero_force_ds_cpu_optimizer")  # written or not as the device wants it
    if processes is not None:
        check_batches_of(path, values, processes)
    count = processes or _implied(top) or 1
    top.known |= {key for key in _BATCH if top.values.get(key) == "auto"}
    for precision in ("bf16", "fp16"):
        if not (inner := top.part(precision)).flag("enabled"):  # auto: the script decides
            parts.append(inner)
        else:
            top.known.discard(precision)
    unknown_keys: dict[str, Any] = {}
    for reader in parts:
        unknown_keys |= dict(reader.unknown())
    return _zero(stage, count, devices, options if stage else {}), unknown_keys


_BATCH = (
    *("train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping"),
    "train_batch_size",
)


def _implied(top: Reader) -> int | None:
    """Ranks that a DeepSpeed JSON's three batch sizes multiply to, if it has them."""
    per_rank, global_batch = top.values.get(_BATCH[0]), top.values.get("train_batch_size")
    steps = top.values.get("gradient_accumulation_steps", 1)
    if not (isinstance(per_rank, int) and isinstance(global_batch, int) and isinstance(steps, int)):
        return None
    if min(per_rank, global_batch, steps) < 1 or global_batch % (per_rank * steps):
        raise top.wrong("train_batch_size", f"a multiple of {per_rank} x {steps}")
    return global_batch // (per_rank * steps)
