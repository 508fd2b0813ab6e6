"""Where each file of a run lies. See `schema` for what is in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, final

CELL_FOLDER = "cell"
"""Holds the script of a run that a notebook's cell or a function started."""


class Folder(Protocol):
    """What has files by fixed names."""

    @property
    def directory(self) -> Path:
        """Where they lie."""
        ...


@final
class NamedFile:
    """A file or folder by its path below the directory of its owner."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __get__(self, owner: Folder, _kind: type[Folder]) -> Path:
        return owner.directory / self._path


@final
class RankFile:
    """As `NamedFile`, one of each rank or machine: a method of its number."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __get__(self, owner: Folder, _kind: type[Folder]) -> Callable[[int], Path]:
        return lambda rank: owner.directory / self._path.format(rank)


@dataclass(frozen=True, slots=True)
class RunPaths:
    """The paths of one run directory; nothing is created by naming it."""

    directory: Path
    """The run directory itself, ``<store>/<run-id>``."""

    run = NamedFile("run.json")
    """What was asked (`run_record.RunRecord`)."""
    state = NamedFile("state.json")
    """The present (`schema.StateDoc`)."""
    view = NamedFile("view.json")
    """The charts' bounded snapshot (`schema.ViewDoc`)."""
    exit = NamedFile("exit.json")
    """The end (`schema.ExitDoc`)."""
    row = NamedFile("row.json")
    """The ended run as lists show it (`row_schema.RowDoc`)."""
    labels = NamedFile("labels.json")
    """What people say of the run (`schema.LabelsDoc`)."""
    system = NamedFile("system.jsonl")
    """Hardware samples, one JSON line each."""
    report = NamedFile("report.html")
    """The finished run on one page."""
    comparison = NamedFile("comparison.json")
    """Predicted beside measured (`schema.ComparisonDoc`), of a run that has ended."""
    energy = NamedFile("energy.json")
    """What each device took so far (`observe.energy.EnergyMeter.document`)."""
    config = NamedFile("config")
    """Folder of the launcher's config files."""
    cell = NamedFile(CELL_FOLDER)
    """Folder of the script that was a notebook's cell, or calls a function."""
    source = NamedFile("source")
    """Folder of what no commit holds: changes and copies of the script's own files."""
    logs = NamedFile("logs")
    """Folder of log files."""
    metrics = NamedFile("metrics")
    """Folder of the per-rank metric files."""
    control = NamedFile("control")
    """Folder into which clients drop requests."""
    checkpoints = NamedFile("checkpoints")
    """Folder of checkpoints."""
    nodes = NamedFile("nodes")
    """Folder of what several machines tell one another."""
    node_order = NamedFile("nodes/order.json")
    """What each machine has to do now (`node_schema.NodeOrder`)."""
    node = RankFile("nodes/node-{}.json")
    """What machine `rank` reports itself (`node_schema.NodeDoc`)."""

    def node_system(self, rank: int) -> Path:
        """Hardware samples of machine `rank`."""
        return self.system if rank == 0 else self.nodes / f"system-{rank}.jsonl"

    def node_log(self, rank: int) -> Path:
        """Output of the launcher on machine `rank`."""
        return self.launcher_log if rank == 0 else self.logs / f"launcher-node-{rank}.log"

    profiles = NamedFile("profiles")
    """Folder of traces, one folder ``step-N`` each, named after the first step traced."""
    profile_request = NamedFile("control/profile")
    """The steps that someone wants traced; see `schema`."""
    launcher_log = NamedFile("logs/launcher.log")
    """Output of ``accelerate launch`` itself."""
    supervisor_log = NamedFile("logs/supervisor.log")
    """What the supervisor did and why."""
    steering = NamedFile("steering")
    """Folder of what was asked of the training at step boundaries, a folder each."""
    lock = NamedFile("control/supervisor.lock")
    """Held (flock) by the run's one supervisor."""
    rank_log = RankFile("logs/rank-{}.log")
    """Stdout and stderr of `rank`."""
    rank_metrics = RankFile("metrics/rank-{}.jsonl")
    """Metric lines of `rank`."""
    rank_rewinds = RankFile("metrics/rank-{}.rewinds.jsonl")
    """Where the script of `rank` went back to a checkpoint of its own within an attempt."""
    rank_weights = RankFile("metrics/rank-{}.weights.jsonl")
    """A few numbers of some weights of `rank`, now and then."""
    rank_start = RankFile("metrics/rank-{}.start.json")
    """Who `rank` is (pid and world size), written when it starts."""
    rank_end = RankFile("metrics/rank-{}.end.json")
    """How `rank` ended."""

    @property
    def waiting(self) -> Iterator[Path]:
        """Notes ``waits-P-C`` of processes that wait for a group, see `schema`."""
        return self.metrics.glob("waits-*-*")

    findings = NamedFile("findings.json")
    """What was diagnosed: ``{"findings": [...]}``, see `workbench.store.findings`."""
    attempts = NamedFile("attempts.jsonl")
    """One line per start of the launcher (`schema.AttemptLine`)."""
    rehearsal = NamedFile("rehearsal.jsonl")
    """What happened on a rehearsal's clock (`journal_schema.RehearsedLine`)."""
    actions = NamedFile("actions.jsonl")
    """What programs did with the run for someone (`journal_schema.ActionLine`)."""
    saved = NamedFile("checkpoints.jsonl")
    """One line per checkpoint that the hook saw being saved (`schema.SavedLine`)."""
    manifests = NamedFile("checkpoints/.manifests")
    """Manifests of checkpoints that lie outside the run, made by the supervisor."""
    rank_pulse = RankFile("metrics/rank-{}.pulse")
    """Where `rank` is right now: 64 bytes, see `schema.PULSE_FORMAT`."""
    rank_stack = RankFile("metrics/rank-{}.stack")
    """Python stacks of `rank`, appended each time they were asked for."""
    rank_trace = RankFile("metrics/rank-{}.trace.json")
    """The latest collectives of `rank` (torch's flight recorder), written when asked for."""
    rank_arrivals = RankFile("metrics/rank-{}.arrivals.json")
    """When `rank` entered its latest collectives; see `observe.arrivals`."""
    arrivals = NamedFile("arrivals.jsonl")
    """Who waited for whom, joined over all ranks; one line per look (`observe.arrivals`)."""
    rank_said = RankFile("metrics/rank-{}.said.jsonl")
    """What the script of `rank` told by ``workbench.log``, one JSON object per call."""

    @property
    def folders(self) -> tuple[Path, ...]:
        """Those that every run has from the beginning."""
        return (self.config, self.logs, self.metrics, self.control, self.checkpoints)

    def make_folders(self) -> None:
        """Create the folders (not the directory itself, whose creation claims the run id)."""
        for folder in self.folders:
            folder.mkdir(mode=0o700, exist_ok=True)
