"""The warm server that fits a launch: which one that is, and starting it ahead of the launch."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from workbench.describe import Strategy
from workbench.errors import HostError
from workbench.launch.dry_run import Request
from workbench.launch.launcher_process import LOADERS, inherited
from workbench.launch.targets import worth_preloading
from workbench.launch.warm import client

# Accelerate imports the second for DeepSpeed's configuration.
_OF_DEEPSPEED = ("deepspeed", "transformers.integrations.deepspeed")


def fitting_kind(environment: Mapping[str, str], warm: Mapping[str, Any]) -> client.ServerKind:
    """The server for ranks with this environment of an order and its part `warm`.

    The launcher is started by a supervisor, which inherits this process's variables, but not those
    that make Python load something.
    """
    kept = {name: value for name, value in inherited().items() if name not in LOADERS}
    return client.server_kind({**kept, **environment}, warm["threads"], warm["modules"])


def warm_part(script: Path, threads: int | None, strategy: Strategy) -> dict[str, Any]:
    """The part `warm` of an order: what the server has imported, and with how many threads."""
    modules = list(worth_preloading(script))
    if strategy.zero_stage is not None and strategy.engine != "torch":
        modules += [name for name in _OF_DEEPSPEED if find_spec(name.partition(".")[0])]
    return {"threads": threads, "modules": modules}


def start_ahead(request: Request) -> dict[str, Any]:
    """Start the server that fits `request`, unless it runs, and wait until it is ready.

    Returns:
        What the server says of itself.

    Raises:
        HostError: its folder is not trusted, or it ended while it imported its modules.
    """
    warm = warm_part(request.script, request.threads.value, request.strategy)
    kind = fitting_kind(request.environment, warm)
    client.start_server(kind)
    status = client.ask(kind.address, "status")
    if status is None:
        log = kind.address.with_suffix(".log")
        raise HostError(
            f"The warm server ended before it was ready; {log} says why. Launches start cold."
        )
    return status
