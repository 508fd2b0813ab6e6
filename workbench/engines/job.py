"""`Job`: a training over several machines, before any engine's file is written from it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from workbench.describe import Strategy
from workbench.describe.checks import require_at_least, require_positive
from workbench.errors import UsageError

DISK_GB = 256
"""Of a rented machine, unless the job says another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What to train, how it is spread and on what kind of machines; no engine's words."""

    name: str
    """Display name; engines get it as a slug."""
    script: str
    """A path as the machines of the job see it, or the name of a recipe."""
    recipe_folder: str | None = None
    """Where a recipe's files lie on the machines; None = in this installation."""
    arguments: tuple[str, ...] = ()
    """Arguments of the script."""
    strategy: Strategy
    """How the work is spread over all processes of all nodes."""
    nodes: int = 1
    """Equal machines."""
    processes_per_node: int = 1
    """Ranks on each; on GPUs one per GPU."""
    gpu: str | None = None
    """Catalog id of the accelerator (``h100-sxm``); None = CPU."""
    working_directory: Path | None = None
    """Where the script is started, as the machines see it; None = the engine's own."""
    store: Path | None = None
    """Folder of run directories on storage that all nodes share; None = each machine's own."""
    python: str = "python"
    """Interpreter on the machines, with accelerate installed."""
    image: str | None = None
    """Container image; None = the engine's or machine's own system."""
    setup: tuple[str, ...] = ()
    """Shell lines that prepare a machine, once."""
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    """Variables of every rank."""
    secrets: tuple[str, ...] = ()
    """Names of variables whose values the engine keeps; never the values."""
    checkpoint_uri: str | None = None
    """What outlives the machines: a bucket (``s3://…``), ``volume:NAME``, ``pvc:NAME`` or a path
    on storage they share; None = none."""
    checkpoint_every: int | None = None
    """Optimizer steps between checkpoints; None = the script's own affair."""
    spot: bool = False
    """Whether the machines may be taken back."""
    restarts: int = 0
    """Maximum further starts of the job, from the newest checkpoint."""
    max_hours: float | None = None
    """The engine ends the job then; None = no limit."""
    max_usd_per_hour: float | None = None
    """Of all machines together; None = no limit."""
    idle_minutes: int | None = None
    """Machines idle this long are given back, where the engine can; None = not."""
    disk_gb: int | None = None
    """Of each machine, decimal GB; None = `DISK_GB` where machines are rented."""
    provider: str | None = None
    """Only there; None = wherever the engine finds the machines."""
    region: str | None = None
    """Only there; None = any."""
    port: int = 29500
    """Rendezvous port on the first node."""

    def __post_init__(self) -> None:
        """Refuse what no engine could start."""
        require_positive("nodes", self.nodes)
        require_positive("processes_per_node", self.processes_per_node)
        for name in ("disk_gb", "idle_minutes", "checkpoint_every"):
            if getattr(self, name) is not None:
                require_positive(name, getattr(self, name))
        for name in ("max_hours", "max_usd_per_hour"):
            _require_above_zero(name, getattr(self, name))
        require_at_least("restarts", self.restarts, 0)
        if self.strategy.world_size != self.world_size:
            raise UsageError(
                f"The strategy {self.strategy.name} has {self.strategy.world_size} ranks, but "
                f"{self.nodes} nodes with {self.processes_per_node} processes each have "
                f"{self.world_size}. Change a degree, the nodes or the processes per node."
            )
        if not 1024 <= self.port <= 65535:
            raise UsageError(f"port must be from 1024 to 65535, not {self.port}.")

    @property
    def world_size(self) -> int:
        """Ranks of all nodes."""
        return self.nodes * self.processes_per_node


def _require_above_zero(field: str, given: object) -> None:
    """Refuse anything but a number above 0, or none."""
    if given is None:
        return
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise UsageError(f"{field} must be a number, not {given!r}.")
    if not (given > 0 and math.isfinite(given)):
        raise UsageError(f"{field} must be above 0, not {given:g}.")
