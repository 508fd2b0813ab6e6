"""`EngineJob`: a training over several machines, before any engine's file is written from it."""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from workbench.describe import Strategy
from workbench.describe.job import default, options
from workbench.describe.option import Option, declared
from workbench.describe.option_limits import check_declared
from workbench.describe.placement import Placement
from workbench.errors import UsageError
from workbench.launching.prepare.preflight import USUAL_PORT
from workbench.launching.prepare.variables import check_variable_names
from workbench.recover.policy import Recovery

NODES: int = default("nodes")
PROCESSES = Placement().world_size
"""Of a job that does not say how many."""
CHECKPOINTS = "/checkpoints"
"""Where storage is mounted on the machines."""
_LIMITS = declared(Recovery)
_LONGEST, _DIGITS = 40, 6  # of a name that engines get
DISK_GB = 256
"""Of a rented machine, unless the job says another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """Abstract: what an engine is asked for beside the training itself."""

    provider: Annotated[str | None, Option(help="Only at this provider: aws, lambda, runpod …")] = (
        None
    )
    """Only there; None = wherever the engine finds the machines."""
    region: Annotated[str | None, Option(help="Only in this region.")] = None
    """Only there; None = any."""
    spot: Annotated[bool, Option(help="Machines that may be taken back.")] = False
    """Whether the machines may be taken back."""
    checkpoint_uri: Annotated[
        str | None,
        Option(
            help="s3://…, volume:NAME, pvc:NAME or a shared path.",
            flag="checkpoints",
            aliases=("bucket",),
        ),
    ] = None
    """What outlives the machines: a bucket (``s3://…``), ``volume:NAME``, ``pvc:NAME`` or a path
    on storage they share; None = none."""
    checkpoint_every: Annotated[
        int | None, Option(help="Recipes: optimizer steps between checkpoints.", least=1)
    ] = None
    """Optimizer steps between checkpoints; None = the script's own affair."""
    restarts: Annotated[
        int, Option(help="Maximum further starts, from the newest checkpoint.", least=0)
    ] = 0
    """Starts after the first, from the newest checkpoint."""
    max_hours: Annotated[float | None, Option(help="Time limit of the job.", above=0)] = None
    """The engine ends the job then; None = no limit."""
    max_usd_per_hour: Annotated[
        float | None, Option(help="Highest price of all machines together.", above=0)
    ] = None
    """Of all machines together; None = no limit."""
    max_usd: Annotated[float | None, _LIMITS["max_usd"].option] = None
    """For the training in all starts, at `price`; None = no limit."""
    max_kwh: Annotated[float | None, _LIMITS["max_kwh"].option] = None
    """Of the GPU boards in all starts; None = no limit."""
    usd_per_hour: Annotated[
        float | None,
        Option(
            help="Price of all machines, for --max-usd [default: the plan's, or the maximum].",
            above=0,
        ),
    ] = None
    """Of all machines together; None = the plan's, else `max_usd_per_hour`."""
    idle_minutes: Annotated[
        int | None, Option(help="Release machines after this many idle minutes.", least=1)
    ] = None
    """Machines idle this long are given back, where the engine can; None = not."""
    disk_gb: Annotated[
        int | None, Option(help=f"Disk of each machine [default: {DISK_GB}, if rented].", least=1)
    ] = None
    """Of each machine, decimal GB; None = `DISK_GB` where machines are rented."""
    image: Annotated[str | None, Option(help="Container image [default: the engine's].")] = None
    """Container image; None = the engine's or machine's own system."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineJob(EngineSettings):
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
    nodes: Annotated[int, options()["nodes"].option] = NODES
    """Equal machines."""
    processes_per_node: Annotated[int, options()["gpus"].option] = PROCESSES
    """Ranks on each; on GPUs one per GPU."""
    gpu: str | None = None
    """Catalog id of the accelerator (``h100-sxm``); None = CPU."""
    working_directory: Path | None = None
    """Where the script is started, as the machines see it; None = the engine's default."""
    store: Path | None = None
    """Folder of run directories on storage that all nodes share; None = each machine's own."""
    python: str = "python"
    """Interpreter on the machines, with accelerate installed."""
    setup: tuple[str, ...] = ()
    """Shell lines that prepare a machine, once."""
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    """Variables of every rank."""
    secrets: tuple[str, ...] = ()
    """Names of variables whose values the engine keeps; never the values."""
    port: int = USUAL_PORT
    """Rendezvous port on the first node."""

    def __post_init__(self) -> None:
        """Refuse what no engine could start."""
        check_declared(self)
        check_variable_names([*self.environment, *self.secrets])
        if self.strategy.world_size != self.world_size:
            raise UsageError(
                f"The strategy {self.strategy.name} has {self.strategy.world_size} ranks, but "
                f"{self.nodes} nodes with {self.processes_per_node} processes each have "
                f"{self.world_size}. Change a degree, the nodes or the processes per node."
            )
        if self.max_usd is not None and self.price is None:
            raise UsageError(
                f"--max-usd {self.max_usd:g} needs the price of the machines: give --usd-per-hour, "
                "what all of them cost together."
            )
        if self.max_kwh is not None and self.gpu is None:
            raise UsageError(
                f"--max-kwh {self.max_kwh:g} counts the energy of GPUs, and the job has none. "
                "Give --gpu, or limit the time: --max-hours."
            )
        if not 1024 <= self.port <= 65535:
            raise UsageError(f"port must be from 1024 to 65535, not {self.port}.")

    @property
    def world_size(self) -> int:
        """Ranks of all nodes."""
        return self.nodes * self.processes_per_node

    @property
    def price(self) -> float | None:
        """Dollars an hour of all machines together: at most, where only that is known."""
        return self.usd_per_hour or self.max_usd_per_hour


def slug(job: EngineJob) -> str:
    """The name as engines allow it: small letters, digits and "-", from 2 to 40; "ä" becomes "a".

    Storage has a folder of this name, from which a job continues. So names that would become the
    same by what is left out of them (letters of other alphabets, an end) get digits of their own.
    """
    plain = unicodedata.normalize("NFKD", job.name).encode("ascii", "ignore").decode().lower()
    dashed = "".join(char if char.isalnum() else "-" for char in plain)
    text = "-".join(part for part in dashed.split("-") if part)
    if not text[:1].isalpha() or len(text) == 1:
        text = f"job-{text}".strip("-")
    if len(text) > _LONGEST or any(not char.isascii() and char.isalnum() for char in job.name):
        digits = hashlib.sha256(job.name.encode(errors="replace")).hexdigest()[:_DIGITS]
        text = f"{text[: _LONGEST - _DIGITS - 1].strip('-')}-{digits}"
    return text


def checkpoint_folder(job: EngineJob) -> str | None:
    """Where the machines see the job's checkpoints; None = on their own disks."""
    where = job.checkpoint_uri
    if where is None:
        return None
    return f"{where if where.startswith('/') else CHECKPOINTS}/{slug(job)}"
