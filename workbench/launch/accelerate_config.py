"""Turns a `Strategy` into Accelerate's config file, arguments and environment.

The only file that knows Accelerate's names. Facts it builds on (Accelerate 1.15, each under test):

- ``--cpu --num_processes 2`` starts one process and exits 0, and ``use_cpu: true`` in the config
  takes the same path. ``MULTI_GPU`` with ``ACCELERATE_USE_CPU=true`` in the environment starts real
  ranks on CPU + gloo.
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


def check_supported(strategy: Strategy) -> None:
    """Refuse what cannot be started yet.

    Raises:
        UsageError: the strategy is anything but single or DDP.
    """
    if strategy.world_size != strategy.dp_replicate:
        raise UsageError(
            f"Strategy {strategy.name!r} cannot be launched yet. Use 'single' or 'ddp'."
        )


def config_text(strategy: Strategy) -> str:
    """The accelerate config file (YAML; every value is written as JSON, which YAML includes)."""
    check_supported(strategy)
    distributed = strategy.world_size > 1
    values: dict[str, object] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "MULTI_GPU" if distributed else "NO",
        "num_machines": 1,
        "num_processes": strategy.world_size,
        "machine_rank": 0,
        "mixed_precision": "no",  # the script decides (recipes: --precision)
        "rdzv_backend": "static",
        "same_network": True,
        "use_cpu": False,  # CPU ranks come from the environment, see above
    }
    note = "# Ranks on CPU: the environment then has ACCELERATE_USE_CPU=true beside this file.\n"
    return note + "".join(f"{key}: {json.dumps(value)}\n" for key, value in values.items())


def command(
    config: Path, script: Path, arguments: list[str], *, threads: int, port: int
) -> list[str]:
    """The exact argv. Port 0 lets the launcher take a free one."""
    return [
        *(sys.executable, "-m", "accelerate.commands.launch"),
        *("--config_file", str(config)),
        *("--main_process_port", str(port)),
        *("--num_cpu_threads_per_process", str(threads)),
        *("--dynamo_backend", "no"),
        *("--mixed_precision", "no"),
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
