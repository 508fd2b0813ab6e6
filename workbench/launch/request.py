"""The dry run: everything that would be started, exactly, before anything is.

`request` checks the wish against this host and returns a `Request`; nothing is written.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from workbench import recipes
from workbench.describe import Cluster, Model, Strategy, Workload
from workbench.describe.hardware import detect_host
from workbench.errors import HostError, UsageError
from workbench.estimate import Estimate, training_memory
from workbench.launch import accelerate_config
from workbench.launch.capture import SITE_FOLDER
from workbench.launch.targets import resolve
from workbench.observe.doctor import NAME_CLASH_FIX, name_clash
from workbench.store import names
from workbench.store.runs import Store

MAX_CPU_RANKS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A launch that has been checked and could start as it is."""

    name: str
    """Display name of the run."""
    script: Path
    """The training script, absolute."""
    arguments: tuple[str, ...]
    """Arguments of the script."""
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
    capture: bool = True
    """Whether the hook records metrics (else it only separates the logs by rank)."""
    port: int = 0
    """Rendezvous port; 0 = a free one."""
    extra_environment: Mapping[str, str] = field(default_factory=dict[str, str])
    """The caller's own variables."""
    workload: Workload | None = None
    """Known for recipes."""
    predicted: Estimate | None = None
    """Predicted memory of one rank, when the workload is known."""
    steps_total: int | None = None
    """Optimizer steps asked for, when known."""
    seconds_total: float | None = None
    """Time limit asked for, when known."""

    @property
    def planned_directory(self) -> Path:
        """The run directory that a launch would claim now."""
        return self.store.next_directory(self.name)

    @property
    def processes(self) -> int:
        """Number of ranks."""
        return self.strategy.world_size

    @property
    def threads(self) -> int:
        """CPU threads per rank: the cores shared out, at least one."""
        return max(1, (self.cluster.cpu_cores or 1) // self.processes)

    @property
    def command(self) -> list[str]:
        """The exact argv, as if the run got the planned directory."""
        return self.command_in(self.planned_directory)

    def command_in(self, directory: Path) -> list[str]:
        """The exact argv with the config files of the run directory `directory`."""
        return accelerate_config.command(
            directory / "config",
            self.script,
            list(self.arguments),
            strategy=self.strategy,
            device=self.device,
            threads=self.threads,
            port=self.port,
        )

    @property
    def config_files(self) -> dict[str, str]:
        """Path -> text of every config file, as if the run got the planned directory."""
        return self.config_files_in(self.planned_directory)

    def config_files_in(self, directory: Path) -> dict[str, str]:
        """Path -> text of every config file of the run directory `directory`."""
        folder = directory / "config"
        files = accelerate_config.files(self.strategy, self.device, self.wrap)
        return {str(folder / name): text for name, text in files.items()}

    @property
    def environment(self) -> dict[str, str]:
        """What differs from the caller's environment when the workbench starts it."""
        return self._environment(hooked=True)

    def _environment(self, *, hooked: bool) -> dict[str, str]:
        values = accelerate_config.environment(self.device)
        values["PYTHONUNBUFFERED"] = "1"
        if hooked:
            values["WORKBENCH_CAPTURE"] = "full" if self.capture else "logs"
        values |= self.extra_environment
        if hooked:  # before whatever the user has there
            existing = values.get("PYTHONPATH", os.environ.get("PYTHONPATH"))
            values["PYTHONPATH"] = os.pathsep.join(filter(None, [str(SITE_FOLDER), existing]))
        return values

    def shell(self, *, hooked: bool = False) -> str:
        """Pasteable shell text: the config file, then the command.

        Without `hooked` it needs Accelerate alone, no workbench.
        """
        variables = self._environment(hooked=hooked)
        assignments = [f"{name}={shlex.quote(value)}" for name, value in variables.items()]
        directory = self.planned_directory
        files = [
            f"mkdir -p {shlex.quote(str(Path(path).parent))} && "
            f"cat > {shlex.quote(path)} <<'END'\n{text}END\n"
            for path, text in self.config_files_in(directory).items()
        ]
        line = [
            *("cd", shlex.quote(str(self.working_directory)), "&&"),
            *assignments,
            *map(shlex.quote, self.command_in(directory)),
        ]
        return "".join(files) + " ".join(line)


def request(
    target: str | os.PathLike[str],
    arguments: Sequence[str] = (),
    *,
    strategy: str | Strategy | None = None,
    processes: int | None = None,
    options: Mapping[str, Any] | None = None,
    cpu: bool = False,
    name: str | None = None,
    store: str | os.PathLike[str] | Store | None = None,
    wrap: str | None = None,
    capture: bool = True,
    port: int = 0,
    environment: Mapping[str, str] | None = None,
) -> Request:
    """Check a launch against this host, start nothing.

    Args:
        target: A recipe's name or the path of a Python script.
        arguments: The script's arguments.
        strategy: A name (see `workbench.describe.strategy`) or a `Strategy` with its options;
            default ``ddp``, or ``single`` for one process.
        options: Options of the strategy by name, such as ``recompute`` and ``offload``.
        processes: Ranks; default all GPUs, or 2 on a host without.
        cpu: Use CPU ranks although there are GPUs.
        name: Display name; default the script's name and the strategy.
        store: Folder of runs; default ``$WORKBENCH_STORE``, else ``./runs``.
        wrap: Class name of the model's repeated block, for FSDP; recipes and Hugging Face models
            know their own.
        capture: False leaves the script unobserved (logs are still kept per rank).
        port: Rendezvous port, 0 for a free one.
        environment: Variables added to the ranks' environment.

    Raises:
        UsageError: the wish cannot be carried out; the message says what would work.
        HostError: torch or accelerate is missing here.
    """
    script, recipe = resolve(os.fspath(target))
    cluster = detect_host()
    device = "cpu" if cpu or not cluster.gpus else "cuda"
    chosen = _strategy(strategy, processes, device, cluster).with_options(**options or {})
    accelerate_config.check_supported(chosen)
    _check_port(port)
    _require_libraries()
    request = Request(
        name=names.check_name(name if name is not None else f"{script.stem}-{_label(chosen)}"),
        script=script,
        arguments=tuple(arguments),
        recipe=recipe,
        strategy=chosen,
        cluster=cluster,
        device=device,
        working_directory=Path.cwd(),
        store=store if isinstance(store, Store) else Store(store),
        wrap=wrap if wrap is not None or recipe is None else recipes.find(recipe).block,
        capture=capture,
        port=port,
        extra_environment=dict(environment or {}),
    )
    return request if recipe is None else _with_prediction(request, recipe)


def _strategy(
    given: str | Strategy | None, processes: int | None, device: str, cluster: Cluster
) -> Strategy:
    """The strategy asked for, with as many ranks as asked for and as there can be."""
    if isinstance(given, Strategy):
        _process_count(processes or given.world_size, None, device, cluster)
        if processes not in {None, given.world_size}:
            raise UsageError(
                f"The strategy has {given.world_size} ranks, but {processes} processes were "
                "asked for. Leave one of them out."
            )
        return given
    count = _process_count(processes, given, device, cluster)
    return Strategy.parse(given or ("ddp" if count > 1 else "single"), count)


def _check_port(port: int) -> None:
    if not 0 <= port <= 65_535:
        raise UsageError(f"The port must be between 0 (a free one) and 65535, not {port}.")


def _label(strategy: Strategy) -> str:
    """The strategy's part of a run's default name: degrees already say the number of ranks."""
    text = strategy.name
    return text if text[-1:].isdigit() else f"{text}{strategy.world_size}"


def _process_count(asked: int | None, strategy: str | None, device: str, cluster: Cluster) -> int:
    gpus = len(cluster.gpus)
    if asked is None:
        if (strategy or "").strip().lower() == "single":
            return 1
        return gpus if device == "cuda" else 2
    if asked < 1:
        raise UsageError(f"The number of processes must be at least 1, not {asked}.")
    if device == "cuda" and asked > gpus:
        raise UsageError(
            f"{asked} processes were asked for, but {gpus} GPU{'s are' if gpus > 1 else ' is'} "
            f"visible here. Use --nproc {gpus}, or --cpu for CPU ranks."
        )
    if device == "cpu" and asked > MAX_CPU_RANKS:
        raise UsageError(
            f"{asked} CPU processes were asked for; this host has {cluster.cpu_cores} cores. "
            f"Use at most {MAX_CPU_RANKS}; --nproc 2 to 4 is usual."
        )
    return asked


def _require_libraries() -> None:
    clash = name_clash()
    if clash is not None:
        raise HostError(
            f"The workbench does not run beside another one: {clash}. {NAME_CLASH_FIX}."
        )
    missing = [name for name in ("torch", "accelerate") if importlib.util.find_spec(name) is None]
    if missing:
        raise HostError(
            f"{' and '.join(missing)} cannot be imported here. Install with: "
            "pip install 'training-workbench[train]' (or run make demo in the repository)."
        )


def _with_prediction(request: Request, recipe: str) -> Request:
    """Add what is known of a recipe: its defaults for the device, workload and predicted memory.

    On a GPU the recipe's GPU-sized defaults come before the user's own arguments, which win. The
    time limit is left to the recipe, which has one only when no steps are asked for.
    """
    arguments = request.arguments
    if request.device == "cuda":
        defaults = list(recipes.find(recipe).gpu_arguments)
        if "--minutes" in defaults:
            at = defaults.index("--minutes")
            del defaults[at : at + 2]
        arguments = (*defaults, *arguments)
    shape = recipes.shape(arguments, recipe=recipe)
    model = Model(
        name=f"{recipe}, {shape['layers']} layers, {shape['hidden']} wide",
        layers=shape["layers"],
        hidden=shape["hidden"],
        heads=shape["heads"],
        mlp_hidden=shape["mlp"],
        vocab=shape["vocab"],
        gated_mlp=False,
        norm="rmsnorm-plain",
        tied_embeddings=shape["tied"],
    )
    workload = Workload(
        model=model,
        seq_len=shape["seq_len"],
        micro_batch=shape["micro_batch"],
        accumulate=shape["accumulate"],
        precision=shape["precision"],
    )
    minutes = shape["minutes"]
    return replace(
        request,
        arguments=arguments,
        workload=workload,
        predicted=training_memory(workload, request.strategy, request.device),
        steps_total=shape["steps"],
        seconds_total=None if minutes is None else 60.0 * minutes,
    )
