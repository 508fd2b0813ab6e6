"""Turns a `Strategy` into Accelerate's config file, arguments and environment.

The only file that knows Accelerate's names. Facts it builds on (Accelerate 1.15, each under test):

- ``--cpu --num_processes 2`` starts one process and exits 0, and ``use_cpu: true`` in the config
  takes the same path. ``MULTI_GPU`` with ``ACCELERATE_USE_CPU=true`` in the environment starts real
  ranks on CPU + gloo; sharded ones need cpu_ranks.py before the script.
- Its launcher's own restarts reuse a broken store (they recovered 1 of 5 kills); we never ask for
  them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from workbench.describe import Strategy
from workbench.errors import UsageError

CONFIG_NAME = "accelerate.yaml"
CPU_RANKS = Path(__file__).with_name("cpu_ranks.py")
OFFLOADED = ("optimizer", "parameters")


def check_supported(strategy: Strategy) -> None:
    """Refuse what cannot be started yet.

    Raises:
        UsageError: the strategy is anything but single, DDP or FSDP, or has options that
            Accelerate does not set for a script.
    """
    data = strategy.dp_replicate * strategy.dp_shard
    if strategy.world_size != data or strategy.zero_stage is not None:
        raise UsageError(
            f"Strategy {strategy.name!r} cannot be launched yet. "
            "Use 'single', 'ddp', 'fsdp', 'fsdp-grad-op' or 'hsdp'."
        )
    if strategy.recompute == "selective" or strategy.recompute_layers is not None:
        raise UsageError(
            "Selective recompute is the script's own business. Launch with recompute 'none' or "
            "'full', or build it into the script."
        )
    if not is_sharded(strategy) and (strategy.recompute != "none" or strategy.offload):
        raise UsageError(
            f"Recompute and offload are set by the launcher for sharded strategies only, not for "
            f"{strategy.name!r}. Use 'fsdp', or do it in the script."
        )
    if strategy.offload and set(strategy.offload) != set(OFFLOADED):
        raise UsageError(
            f"FSDP2 offloads weights and optimizer states together, not {strategy.offload}. "
            "Use offload optimizer,parameters."
        )


def why_not(strategy: Strategy, nodes: int = 1) -> str:
    """Why the launcher does not start this from one host; empty = it does."""
    try:
        check_supported(strategy)
    except UsageError as error:
        return str(error)
    if nodes > 1:
        return f"The plan has {nodes} machines; the launcher starts ranks on this one only."
    return ""


def is_sharded(strategy: Strategy) -> bool:
    """Whether FSDP spreads the states."""
    return strategy.dp_shard > 1


def config_text(strategy: Strategy, wrap: str | None = None) -> str:
    """The accelerate config file (YAML; every value is written as JSON, which YAML includes).

    Args:
        strategy: How the work is spread.
        wrap: Class name of the blocks that FSDP gathers one by one; None = what a Hugging Face
            model names itself.
    """
    check_supported(strategy)
    kind = "MULTI_GPU" if strategy.world_size > 1 else "NO"
    values: dict[str, object] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "FSDP" if is_sharded(strategy) else kind,
        "num_machines": 1,
        "num_processes": strategy.world_size,
        "machine_rank": 0,
        "mixed_precision": "no",  # the script decides (recipes: --precision)
        "rdzv_backend": "static",
        "same_network": True,
        "use_cpu": False,  # CPU ranks come from the environment, see above
    }
    if is_sharded(strategy):
        values["fsdp_config"] = _fsdp(strategy, wrap)
        if strategy.dp_replicate > 1:
            values["parallelism_config"] = {
                "parallelism_config_dp_replicate_size": strategy.dp_replicate,
                "parallelism_config_dp_shard_size": strategy.dp_shard,
                "parallelism_config_tp_size": 1,
                "parallelism_config_cp_size": 1,
            }
    note = "# Ranks on CPU: the environment then has ACCELERATE_USE_CPU=true beside this file.\n"
    return note + "".join(f"{key}: {json.dumps(value)}\n" for key, value in values.items())


def _fsdp(strategy: Strategy, wrap: str | None) -> dict[str, object]:
    values: dict[str, object] = {
        "fsdp_version": 2,
        "fsdp_reshard_after_forward": strategy.reshard_after_forward,
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        "fsdp_cpu_ram_efficient_loading": False,
        "fsdp_activation_checkpointing": strategy.recompute == "full",
        "fsdp_offload_params": bool(strategy.offload),
    }
    if wrap:
        values["fsdp_transformer_layer_cls_to_wrap"] = wrap
    return values


def files(strategy: Strategy, device: str, wrap: str | None = None) -> dict[str, str]:
    """Name -> text of every file that the command reads from the run's config folder."""
    found = {CONFIG_NAME: config_text(strategy, wrap)}
    if _needs_cpu_ranks(strategy, device):
        found[CPU_RANKS.name] = CPU_RANKS.read_text(encoding="utf-8")
    return found


def _needs_cpu_ranks(strategy: Strategy, device: str) -> bool:
    return device == "cpu" and is_sharded(strategy)


def command(
    folder: Path,
    script: Path,
    arguments: list[str],
    *,
    strategy: Strategy,
    device: str,
    threads: int,
    port: int,
) -> list[str]:
    """The exact argv, with the files of `folder`. Port 0 lets the launcher take a free one."""
    before = [str(folder / CPU_RANKS.name)] if _needs_cpu_ranks(strategy, device) else []
    return [
        *(sys.executable, "-m", "accelerate.commands.launch"),
        *("--config_file", str(folder / CONFIG_NAME)),
        *("--main_process_port", str(port)),
        *("--num_cpu_threads_per_process", str(threads)),
        *("--dynamo_backend", "no"),
        *("--mixed_precision", "no"),
        *before,
        str(script),
        *arguments,
    ]


def environment(device: str) -> dict[str, str]:
    """What Accelerate needs in the environment for ranks on `device`."""
    if device == "cuda":
        return {}
    return {
        "ACCELERATE_USE_CPU": "true",
        "CUDA_VISIBLE_DEVICES": "",
        "GLOO_SOCKET_IFNAME": "lo",  # one machine: never depend on how the host name resolves
    }
