"""The warm server that fits a launch: which one that is, and starting it ahead of the launch."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.describe import Strategy
from workbench.describe.supported import Backend, backend
from workbench.errors import HostError
from workbench.launching.prepare.launcher_process import LOADERS, inherited
from workbench.launching.prepare.targets import worth_preloading
from workbench.launching.warm import client

if TYPE_CHECKING:
    from workbench.launching.prepare.request import Request

_WITH_DEEPSPEED = (
    # Accelerate's plugin for it asks transformers, and its engine has a function compiled.
    *("deepspeed", "transformers.integrations.deepspeed"),
    *("torch._dynamo.backends.debugging", "torch._inductor.compile_fx"),
)
_ENGINE_MODULES: dict[Backend, tuple[str, ...]] = {
    "deepspeed": _WITH_DEEPSPEED,
    # Accelerate unwraps a sharded model with DeepSpeed's class in hand, where that is installed:
    # one server for both.
    "fsdp": _WITH_DEEPSPEED,
}


def fitting_kind(
    environment: Mapping[str, str],
    warm: client.WarmSpec,
    shell: Mapping[str, str] | None = None,
) -> client.ServerKind:
    """The server for ranks with this environment of a spec and its part `warm`.

    The launcher is started by a supervisor, which inherits the variables of `shell` (None = this
    process's), but not those that make Python load something.
    """
    variables = {name: value for name, value in inherited(shell).items() if name not in LOADERS}
    return client.server_kind({**variables, **environment}, warm["threads"], warm["modules"])


def warm_part(
    script: Path,
    threads: int | None,
    *,
    strategy: Strategy,
    splits: frozenset[str] | None,
    device: str,
) -> client.WarmSpec:
    """The part `warm` of a spec: what the server has imported, and with how many threads."""
    names = [*worth_preloading(script), *_ENGINE_MODULES.get(backend(strategy, splits), ())]
    if "deepspeed" in names and not _may_preload("deepspeed", device):
        names = [name for name in names if name not in _WITH_DEEPSPEED]
    usable = [
        name
        for name in dict.fromkeys(names)
        if _may_preload(name, device) and not _is_local_module(script, name)
    ]
    return {"threads": threads, "modules": usable}


def _may_preload(module: str, device: str) -> bool:
    """Whether it is installed, and a process that has imported it can be forked.

    DeepSpeed looks for a GPU while it is imported; a process that has spoken to CUDA's driver must
    not be forked. So ranks on GPUs import it themselves.
    """
    package = module.partition(".")[0]
    if package == "deepspeed" and device != "cpu":
        return False
    return find_spec(package) is not None


def _is_local_module(script: Path, module: str) -> bool:
    """Whether the script would import a module of its own by this name (`datasets` often is)."""
    own = script.parent / module.partition(".")[0]
    return own.is_dir() or own.with_suffix(".py").is_file()


def part_of(request: Request) -> client.WarmSpec:
    """The part `warm` of the spec of `request`."""
    return warm_part(
        request.script,
        request.threads.value,
        strategy=request.strategy,
        splits=request.splits,
        device=request.device,
    )


def start_ahead(request: Request) -> dict[str, Any]:
    """Start the server that fits `request`, unless it runs, and wait until it is ready.

    Returns:
        What the server says of itself.

    Raises:
        HostError: its folder is not trusted, or it ended while it imported its modules.
    """
    warm = part_of(request)
    kind = fitting_kind(request.environment, warm)
    client.start_server(kind)
    status = client.ask(kind.address, "status")
    if status is None:
        log = kind.address.with_suffix(".log")
        raise HostError(
            f"The warm server ended before it was ready; {log} says why. Launches start cold."
        )
    return status
