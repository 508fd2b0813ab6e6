"""Turns a `Strategy` into Accelerate's config file, arguments and environment.

Here and in accelerate_defaults.py, deepspeed_config.py, read_config.py and supported.py are
Accelerate's names, nowhere else. Facts they build on (Accelerate 1.15, each under test):

- ``--cpu --num_processes 2`` starts one process and exits 0, and ``use_cpu: true`` in the config
  takes the same path. ``MULTI_GPU`` with ``ACCELERATE_USE_CPU=true`` in the environment starts real
  ranks on CPU + gloo; those of FSDP and DeepSpeed need cpu_ranks.py before the script.
- Its launcher's own restarts reuse a broken store (they recovered 1 of 5 kills); we never ask for
  them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workbench.describe import Strategy
from workbench.describe.supported import (
    Backend,
    backend,
    check_supported,
    is_read,
    scopes,
    why_not,
)
from workbench.launching.prepare.accelerate_defaults import launcher_flags
from workbench.launching.prepare.deepspeed_config import DEEPSPEED_NAME, deepspeed_text
from workbench.launching.prepare.placement import NAMES, for_ranks

__all__ = ["check_supported", "command", "config_text", "environment", "files", "why_not"]

CONFIG_NAME = "accelerate.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class FsdpKey:
    """How an option of FSDP stands in an fsdp_config; it is written and read back by this."""

    key: str
    """Its key there."""
    absent: Any
    """What Accelerate takes an absent key for."""
    words: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What the file says -> the option's value; {} = a switch."""

    def written(self, value: Any) -> Any:
        """The value as the file has it."""
        return next((word for word, meaning in self.words.items() if meaning == value), value)


FSDP_KEYS = {"meta_init": FsdpKey(key="fsdp_cpu_ram_efficient_loading", absent=True)}
"""Options of FSDP that stand in the file as they are."""
CPU_RANKS = Path(__file__).with_name("cpu_ranks.py")
_NOTE = "# Ranks on CPU: the environment then has ACCELERATE_USE_CPU=true beside this file.\n"
_NO_BLOCK = (
    "# No fsdp_transformer_layer_cls_to_wrap: models of Hugging Face name their blocks themselves. "
    "Of another\n# model the workbench's hook finds the repeated block; without the hook it is "
    "gathered as a whole, so\n# add the class of its block there (workbench launch --wrap CLASS).\n"
)


def config_text(
    strategy: Strategy,
    wrap: str | None = None,
    *,
    device: str = "cpu",
    folder: Path | None = None,
    splits: frozenset[str] | None = None,
    nodes: int = 1,
) -> str:
    """The accelerate config file (YAML; every value is written as JSON, which YAML includes).

    It has no mixed_precision, which Accelerate refuses with a DeepSpeed file: a flag sets it.

    Args:
        strategy: How the work is spread.
        wrap: Class name of the blocks that FSDP gathers one by one; None = what a Hugging Face
            model names itself.
        device: ``cuda`` or ``cpu``.
        folder: Where the file will lie; None = it names the DeepSpeed file beside it without one.
        splits: What the recipe does itself; None = someone's own script.
        nodes: Equal machines; each gets its rank from the command line.
    """
    check_supported(strategy, splits, device)
    backend_name = backend(strategy, splits)
    values: dict[str, object] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": _distributed_type(strategy, backend_name),
        "num_machines": nodes,
        "num_processes": strategy.world_size,
        "machine_rank": 0,
        "rdzv_backend": "static",
        "same_network": True,
        "use_cpu": False,  # CPU ranks come from the environment, see above
    }
    if backend_name == "deepspeed":
        path = str(folder / DEEPSPEED_NAME) if folder else DEEPSPEED_NAME
        values["deepspeed_config"] = {"deepspeed_config_file": path, "zero3_init_flag": False}
        if nodes > 1:  # its default starts the other machines itself, over pdsh
            values["deepspeed_config"] |= {"deepspeed_multinode_launcher": "standard"}
    if values["distributed_type"] == "FSDP":
        values["fsdp_config"] = _fsdp(strategy, wrap)
    if backend_name == "mesh" or (backend_name == "fsdp" and strategy.dp_replicate > 1):
        values["parallelism_config"] = _mesh(strategy)
    text = "".join(f"{key}: {json.dumps(value)}\n" for key, value in values.items())
    wraps = wrap or strategy.fsdp.wrap_min_parameters
    if "fsdp_config" in values and splits is None and not wraps:
        text = _NO_BLOCK + text
    return _NOTE + text if device == "cpu" else text


def _distributed_type(strategy: Strategy, kind: Backend) -> str:
    if kind in {"fsdp", "deepspeed"}:
        return kind.upper()
    if kind == "mesh" and strategy.shard_ranks > 1:  # its context parallelism wants FSDP2 too
        return "FSDP"
    return "MULTI_GPU" if strategy.world_size > 1 else "NO"


def _mesh(strategy: Strategy) -> dict[str, object]:
    degrees = {
        "dp_replicate": strategy.dp_replicate,
        "dp_shard": strategy.dp_shard,
        "tp": strategy.tp,
        "cp": strategy.cp,
    }
    values: dict[str, object] = {
        f"parallelism_config_{name}_size": degree for name, degree in degrees.items()
    }
    if strategy.cp > 1:  # keys and values travel; its default gathers all of them at once
        values["parallelism_config_cp_comm_strategy"] = "alltoall"
    return values


def _fsdp(strategy: Strategy, wrap: str | None) -> dict[str, object]:
    by_size = strategy.fsdp.wrap_min_parameters is not None
    values: dict[str, object] = {
        "fsdp_version": 2,
        "fsdp_reshard_after_forward": strategy.fsdp.reshard_after_forward,
        "fsdp_auto_wrap_policy": "SIZE_BASED_WRAP" if by_size else "TRANSFORMER_BASED_WRAP",
        "fsdp_state_dict_type": f"{strategy.fsdp.state_dict.upper()}_STATE_DICT",
        **{
            key.key: key.written(getattr(strategy.fsdp, option))
            for option, key in FSDP_KEYS.items()
            if is_read(strategy, "fsdp", scopes()[option])
        },
        "fsdp_activation_checkpointing": strategy.recompute == "full",
        "fsdp_offload_params": "parameters" in strategy.offload,
    }
    if "activations" in strategy.offload:
        values["fsdp_activation_checkpointing_offload"] = True
    if strategy.engine == "fsdp1":
        values |= {
            "fsdp_version": 1,
            "fsdp_reshard_after_forward": (
                "FULL_SHARD" if strategy.fsdp.reshard_after_forward else "SHARD_GRAD_OP"
            ),
            "fsdp_use_orig_params": True,  # the script makes its optimizer before FSDP wraps
            "fsdp_sync_module_states": strategy.fsdp.meta_init,
        }
    if by_size:
        values["fsdp_min_num_params"] = strategy.fsdp.wrap_min_parameters
    elif wrap:
        values["fsdp_transformer_layer_cls_to_wrap"] = wrap
    return values


def files(
    strategy: Strategy,
    device: str,
    wrap: str | None = None,
    *,
    folder: Path | None = None,
    splits: frozenset[str] | None = None,
    nodes: int = 1,
) -> dict[str, str]:
    """Name -> text of every file that the command reads from the run's config folder `folder`."""
    text = config_text(strategy, wrap, device=device, folder=folder, splits=splits, nodes=nodes)
    texts = {CONFIG_NAME: text}
    if backend(strategy, splits) == "deepspeed":
        texts[DEEPSPEED_NAME] = deepspeed_text(strategy, device)
    if _needs_cpu_ranks(strategy, device, splits):
        texts[CPU_RANKS.name] = CPU_RANKS.read_text(encoding="utf-8")
    return texts


def _needs_cpu_ranks(strategy: Strategy, device: str, splits: frozenset[str] | None) -> bool:
    return device == "cpu" and backend(strategy, splits) in {"fsdp", "deepspeed", "mesh"}


def command(  # noqa: PLR0913 - each is a word of the command
    folder: Path,
    script: Path | str,
    arguments: list[str],
    *,
    strategy: Strategy,
    device: str,
    threads: int,
    port: int,
    splits: frozenset[str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> list[str]:
    """The exact argv, with the files of `folder`. Port 0 lets the launcher take a free one.

    `script`: a file's path, or as a text the name of a module. `environment`: of the ranks; what a
    script of the user's leaves open is taken from it. A recipe leaves nothing open.
    """
    shim = _needs_cpu_ranks(strategy, device, splits)
    before = [str(folder / CPU_RANKS.name)] if shim else []
    if isinstance(script, str):
        before.append("-m" if shim else "--module")
    return [
        *(sys.executable, "-m", "accelerate.commands.launch"),
        *("--config_file", str(folder / CONFIG_NAME)),
        *("--main_process_port", str(port)),
        *("--num_cpu_threads_per_process", str(threads)),
        *launcher_flags((environment or {}) if splits is None else {}),
        *before,
        str(script),
        *for_ranks(arguments, strategy),
    ]


def environment(device: str, interface: str | None = "lo") -> dict[str, str]:
    """What Accelerate needs in the environment for ranks on `device`.

    `interface` leads to the other ranks: ``lo`` on one machine, which never depends on how the host
    name resolves; None = the libraries choose.
    """
    if device == "cuda":
        # gloo too: Accelerate has it beside NCCL for tensors that were offloaded to the CPU.
        return {} if interface in {None, "lo"} else dict.fromkeys(NAMES, str(interface))
    values = {"ACCELERATE_USE_CPU": "true", "CUDA_VISIBLE_DEVICES": ""}
    return values if interface is None else {**values, "GLOO_SOCKET_IFNAME": interface}
