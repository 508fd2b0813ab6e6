"""`Request`: everything that a launch would start, exactly, before anything is."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workbench import recipes
from workbench.describe import Cluster, Strategy, Workload
from workbench.describe.detection import CHOOSE_GPUS
from workbench.describe.job import Job
from workbench.describe.trainers import Preset
from workbench.estimate.parts import Estimate
from workbench.estimate.timing import StepTime
from workbench.launching.capture import SITE_FOLDER
from workbench.launching.prepare import accelerate_config
from workbench.launching.prepare.cpu_threads import CpuThreads, cpu_threads
from workbench.launching.prepare.launcher_process import (
    SINGLE_PROCESS_VARIABLES,
    spreading,
    visible,
    with_visible_gpus,
)
from workbench.launching.prepare.options import LaunchOptions
from workbench.launching.prepare.own_wrapping import wants_launcher
from workbench.launching.prepare.placement import NAMES, Placement, interface_towards
from workbench.launching.prepare.rank_starters import rank_starter
from workbench.launching.prepare.step_prediction import Basis
from workbench.store.runs import Store


def capture_variable(*, capture: bool) -> dict[str, str]:
    """What tells the hook in the ranks whether to record metrics, or logs alone."""
    return {"WORKBENCH_CAPTURE": "full" if capture else "logs"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A launch that has been checked and could start as it is."""

    name: str
    """Display name of the run."""
    script: Path
    """The training script, absolute."""
    module: str | None = None
    """Its name, where it is started as a module."""
    arguments: tuple[str, ...]
    """Arguments of the script."""
    layout_arguments: tuple[str, ...] = ()
    """Those of them, at the front, that the strategy put there."""
    recipe: str | None
    """Name of the recipe, when the script is one of ours."""
    strategy: Strategy
    """How the work is spread."""
    cluster: Cluster
    """This host, as detected."""
    device: str
    """``cuda`` or ``cpu``."""
    working_directory: Path
    """Where the launcher is started."""
    store: Store
    """Where the run directory will be made."""
    wrap: str | None = None
    """Class of the blocks that FSDP gathers one by one; None = what the model names itself."""
    options: LaunchOptions = field(default_factory=LaunchOptions)
    """What was chosen for the launch, with address and port as they were checked."""
    workload: Workload | None = None
    """Known for recipes and described jobs."""
    trainer: Preset | None = None
    """What trains, as the job or the script's imports say; None = a recipe, or not known."""
    predicted: Estimate | None = None
    """Predicted memory of one rank, when the workload is known."""
    predicted_time: StepTime | None = None
    """Predicted time of one optimizer step; None = nothing is known to say it from."""
    predicted_basis: Basis | None = None
    """What that rests on."""
    epoch_steps: int | None = None
    """Optimizer steps of one pass over the user's data; None = not known."""
    epoch_examples: int | None = None
    """Examples that such a pass trains on, all ranks together; None = not known."""
    steps_total: int | None = None
    """Optimizer steps asked for, when known."""
    seconds_total: float | None = None
    """Time limit asked for, when known."""
    checkpoint_every: int | None = None
    """Optimizer steps between checkpoints, when known; 0 = none are written."""
    checkpoints_kept: int | None = None
    """How many a recipe leaves when it has saved one; None = all."""
    checkpoint_folder: Path | None = None
    """Where a recipe writes them; None = below the store."""
    precision: str | None = None
    """Of a recipe's computation; None = the script's own affair."""
    optimizer: str | None = None
    """A recipe's; None = the script's own affair."""
    wrapper: tuple[str, ...] = ()
    """A command that the launcher runs under; ``{run}`` in it is the run directory."""
    part_of: str | None = None
    """What starts it for a question of its own: "measure", "verify", "study"; None = its user."""
    warnings: tuple[str, ...] = ()
    """What may go wrong, each with what helps; nothing in it prevents the start."""

    def __repr__(self) -> str:
        ranks = f"{self.strategy.world_size} processes"
        return f"Request({self.name!r}: {self.script.name}, {self.strategy.name}, {ranks})"

    @property
    def job(self) -> Job | None:
        """What is trained, how and where; None where nothing is known of the model."""
        if self.workload is None:
            return None
        where = "cpu" if self.device == "cpu" else self.cluster
        return Job(
            workload=self.workload, strategy=self.strategy, cluster=where, trainer=self.trainer
        )

    @property
    def planned_directory(self) -> Path:
        """The run directory that a launch would claim now."""
        return self.store.next_directory(self.name)

    @property
    def nodes(self) -> int:
        """Equal machines, this one among them as node 0."""
        return self.options.nodes

    @property
    def processes(self) -> int:
        """Number of ranks, on all machines together."""
        return self.strategy.world_size

    @property
    def processes_here(self) -> int:
        """Ranks on each machine."""
        return self.processes // self.nodes

    @property
    def splits(self) -> frozenset[str] | None:
        """What the recipe does itself (tp, cp, pp, ddp); None for someone's own script."""
        return None if self.recipe is None else recipes.find(self.recipe).splits

    @property
    def usd_per_hour(self) -> float | None:
        """Price of all machines together; None when unknown."""
        price = self.cluster.usd_per_hour
        return None if price is None else price * self.nodes

    @property
    def predicted_usd(self) -> float | None:
        """Bill of the steps or the time asked for; None where price or length are unknown."""
        price, hours = self.usd_per_hour, self.predicted_hours
        return None if hours is None or price is None else hours * price

    @property
    def predicted_hours(self) -> float | None:
        """Time of the steps or the time asked for; None where the length is unknown."""
        step = self.predicted_time
        ends = [] if self.seconds_total is None else [self.seconds_total]
        if self.steps_total is not None and step is not None:
            ends.append(self.steps_total * step.step_seconds)
        return min(ends) / 3600 if ends else None

    def prediction(self) -> dict[str, Any] | None:
        """What run.json keeps as predicted: memory, time and bill, each only where it is known."""
        parts: dict[str, Any] = {}
        if self.predicted is not None:
            parts["memory"] = self.predicted.document()
        if self.predicted_time is not None and self.predicted_basis is not None:
            parts["time"] = {**self.predicted_time.document(), **self.predicted_basis.document()}
        if self.predicted_usd is not None:
            parts["usd"] = self.predicted_usd
        return parts or None

    @property
    def threads(self) -> CpuThreads:
        """CPU threads of each rank, and where that number comes from."""
        return cpu_threads(
            {**os.environ, **self.options.environment},
            cores=self.cluster.cpu_cores,
            ranks=self.processes_here,
            device=self.device,
            offload=bool({"optimizer", "parameters"} & set(self.strategy.offload)),
        )

    @property
    def command(self) -> list[str]:
        """The exact argv, as if the run got the planned directory."""
        return self.command_in(self.planned_directory)

    def command_in(self, directory: Path) -> list[str]:
        """The exact argv with the config files of the run directory `directory`."""
        command = accelerate_config.command(
            directory / "config",
            self.script if self.module is None else self.module,
            list(self.arguments),
            strategy=self.strategy,
            device=self.device,
            threads=self.threads.value,
            port=self.options.port,
            splits=self.splits,
            environment=self.options.environment,
        )
        command = [*(word.replace("{run}", str(directory)) for word in self.wrapper), *command]
        address, port = self.options.address, self.options.port
        if address is None:
            return command
        here = Placement(nodes=self.nodes, node_rank=0, address=address, port=port)
        return here.of(command)

    @property
    def config_files(self) -> dict[str, str]:
        """Path -> text of every config file, as if the run got the planned directory."""
        return self.config_files_in(self.planned_directory)

    def config_files_in(self, directory: Path) -> dict[str, str]:
        """Path -> text of every config file of the run directory `directory`."""
        folder = directory / "config"
        files = accelerate_config.files(
            self.strategy,
            self.device,
            self.wrap,
            folder=folder,
            splits=self.splits,
            nodes=self.nodes,
        )
        return {str(folder / name): text for name, text in files.items()}

    @property
    def environment(self) -> dict[str, str]:
        """What differs from the caller's environment when the workbench starts it."""
        return self._environment(hooked=True)

    def _environment(self, *, hooked: bool) -> dict[str, str]:
        address = self.options.address
        interface = "lo" if address is None else interface_towards(address)
        values = accelerate_config.environment(self.device, interface)
        named = [name for name in NAMES if name in os.environ]
        # The machine's own choice counts.
        values |= {name: os.environ[name] for name in named if self.nodes > 1 or name in values}
        values["PYTHONUNBUFFERED"] = "1"
        is_single = self.processes == self.nodes == 1 and self.recipe is None
        if is_single and rank_starter(self.script) is None and wants_launcher(self.script):
            values |= SINGLE_PROCESS_VARIABLES
        if self.device == "cuda" and self.options.devices:
            values |= visible(self.options.devices)
        if hooked:
            values |= capture_variable(capture=self.options.capture)
        values |= self.options.environment
        if hooked:  # before whatever the user has there
            existing = values.get("PYTHONPATH", os.environ.get("PYTHONPATH"))
            values["PYTHONPATH"] = os.pathsep.join(filter(None, [str(SITE_FOLDER), existing]))
        return values

    def shell(self, *, hooked: bool = False) -> str:
        """Pasteable shell text: the config file, then the command.

        Without `hooked` it needs Accelerate alone, no workbench.
        """
        variables = self._environment(hooked=hooked)
        seen = {name: os.environ[name] for name in CHOOSE_GPUS if name in os.environ}
        if self.device == "cuda":  # the other shell has its own
            variables = {**seen, **variables}
        variables = with_visible_gpus(
            variables, device=self.device, ranks=self.processes, script=self.script
        )
        assignments = [f"{name}={shlex.quote(value)}" for name, value in variables.items()]
        left_out = [word for name in spreading(os.environ) for word in ("-u", name)]
        unset = ["env", *left_out] if left_out else []
        directory = self.planned_directory
        files = [
            f"mkdir -p {shlex.quote(str(Path(path).parent))} && "
            f"cat > {shlex.quote(path)} <<'END'\n{text}END\n"
            for path, text in self.config_files_in(directory).items()
        ]
        line = [
            *("cd", shlex.quote(str(self.working_directory)), "&&"),
            *unset,
            *assignments,
            *map(shlex.quote, self.command_in(directory)),
        ]
        return "".join(files) + " ".join(line)
