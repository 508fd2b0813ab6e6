"""Where each file of a run lies. See `schema` for what is in it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

CELL_FOLDER = "cell"
"""Holds the script of a run that a notebook's cell or a function started."""


@dataclass(frozen=True, slots=True)
class RunPaths:
    """The paths of one run directory; nothing is created by naming it."""

    directory: Path
    """The run directory itself, ``<store>/<run-id>``."""

    @property
    def run(self) -> Path:
        """What was asked (`run_record.RunRecord`)."""
        return self.directory / "run.json"

    @property
    def state(self) -> Path:
        """The present (`schema.StateDoc`)."""
        return self.directory / "state.json"

    @property
    def view(self) -> Path:
        """The charts' bounded snapshot (`schema.ViewDoc`)."""
        return self.directory / "view.json"

    @property
    def exit(self) -> Path:
        """The end (`schema.ExitDoc`)."""
        return self.directory / "exit.json"

    @property
    def row(self) -> Path:
        """The ended run as lists show it (`row_schema.RowDoc`)."""
        return self.directory / "row.json"

    @property
    def labels(self) -> Path:
        """What people say of the run (`schema.LabelsDoc`)."""
        return self.directory / "labels.json"

    @property
    def system(self) -> Path:
        """Hardware samples, one JSON line each."""
        return self.directory / "system.jsonl"

    @property
    def report(self) -> Path:
        """The finished run on one page."""
        return self.directory / "report.html"

    @property
    def comparison(self) -> Path:
        """Predicted beside measured (`schema.ComparisonDoc`), of a run that has ended."""
        return self.directory / "comparison.json"

    @property
    def energy(self) -> Path:
        """What each device took so far (`observe.energy.EnergyMeter.document`)."""
        return self.directory / "energy.json"

    @property
    def config(self) -> Path:
        """Folder of the launcher's config files."""
        return self.directory / "config"

    @property
    def cell(self) -> Path:
        """Folder of the script that was a notebook's cell, or calls a function."""
        return self.directory / CELL_FOLDER

    @property
    def source(self) -> Path:
        """Folder of what no commit holds: changes and copies of the script's own files."""
        return self.directory / "source"

    @property
    def logs(self) -> Path:
        """Folder of log files."""
        return self.directory / "logs"

    @property
    def metrics(self) -> Path:
        """Folder of the per-rank metric files."""
        return self.directory / "metrics"

    @property
    def control(self) -> Path:
        """Folder into which clients drop requests."""
        return self.directory / "control"

    @property
    def checkpoints(self) -> Path:
        """Folder of checkpoints."""
        return self.directory / "checkpoints"

    @property
    def nodes(self) -> Path:
        """Folder of what several machines tell one another."""
        return self.directory / "nodes"

    @property
    def node_order(self) -> Path:
        """What each machine has to do now (`node_schema.NodeOrder`)."""
        return self.nodes / "order.json"

    def node(self, rank: int) -> Path:
        """What machine `rank` reports itself (`node_schema.NodeDoc`)."""
        return self.nodes / f"node-{rank}.json"

    def node_system(self, rank: int) -> Path:
        """Hardware samples of machine `rank`."""
        return self.system if rank == 0 else self.nodes / f"system-{rank}.jsonl"

    def node_log(self, rank: int) -> Path:
        """Output of the launcher on machine `rank`."""
        return self.launcher_log if rank == 0 else self.logs / f"launcher-node-{rank}.log"

    @property
    def profiles(self) -> Path:
        """Folder of traces, one folder ``step-N`` each, named after the first step traced."""
        return self.directory / "profiles"

    @property
    def profile_request(self) -> Path:
        """The steps that someone wants traced; see `schema`."""
        return self.control / "profile"

    @property
    def launcher_log(self) -> Path:
        """Output of ``accelerate launch`` itself."""
        return self.logs / "launcher.log"

    @property
    def supervisor_log(self) -> Path:
        """What the supervisor did and why."""
        return self.logs / "supervisor.log"

    @property
    def steering(self) -> Path:
        """Folder of what was asked of the training at step boundaries, a folder each."""
        return self.directory / "steering"

    @property
    def lock(self) -> Path:
        """Held (flock) by the run's one supervisor."""
        return self.control / "supervisor.lock"

    def rank_log(self, rank: int) -> Path:
        """Stdout and stderr of `rank`."""
        return self.logs / f"rank-{rank}.log"

    def rank_metrics(self, rank: int) -> Path:
        """Metric lines of `rank`."""
        return self.metrics / f"rank-{rank}.jsonl"

    def rank_rewinds(self, rank: int) -> Path:
        """Where the script of `rank` went back to a checkpoint of its own within an attempt."""
        return self.metrics / f"rank-{rank}.rewinds.jsonl"

    def rank_weights(self, rank: int) -> Path:
        """A few numbers of some weights of `rank`, now and then."""
        return self.metrics / f"rank-{rank}.weights.jsonl"

    def rank_start(self, rank: int) -> Path:
        """Who `rank` is (pid and world size), written when it starts."""
        return self.metrics / f"rank-{rank}.start.json"

    def rank_end(self, rank: int) -> Path:
        """How `rank` ended."""
        return self.metrics / f"rank-{rank}.end.json"

    @property
    def waiting(self) -> Iterator[Path]:
        """Notes ``waits-P-C`` of processes that wait for a group, see `schema`."""
        return self.metrics.glob("waits-*-*")

    @property
    def findings(self) -> Path:
        """What was diagnosed: ``{"findings": [...]}``, see `workbench.store.findings`."""
        return self.directory / "findings.json"

    @property
    def attempts(self) -> Path:
        """One line per start of the launcher (`schema.AttemptLine`)."""
        return self.directory / "attempts.jsonl"

    @property
    def rehearsal(self) -> Path:
        """What happened on a rehearsal's clock (`journal_schema.RehearsedLine`)."""
        return self.directory / "rehearsal.jsonl"

    @property
    def actions(self) -> Path:
        """What programs did with the run for someone (`journal_schema.ActionLine`)."""
        return self.directory / "actions.jsonl"

    @property
    def saved(self) -> Path:
        """One line per checkpoint that the hook saw being saved (`schema.SavedLine`)."""
        return self.directory / "checkpoints.jsonl"

    @property
    def manifests(self) -> Path:
        """Manifests of checkpoints that lie outside the run, made by the supervisor."""
        return self.checkpoints / ".manifests"

    def rank_pulse(self, rank: int) -> Path:
        """Where `rank` is right now: 64 bytes, see `schema.PULSE_FORMAT`."""
        return self.metrics / f"rank-{rank}.pulse"

    def rank_stack(self, rank: int) -> Path:
        """Python stacks of `rank`, appended each time they were asked for."""
        return self.metrics / f"rank-{rank}.stack"

    def rank_trace(self, rank: int) -> Path:
        """The latest collectives of `rank` (torch's flight recorder), written when asked for."""
        return self.metrics / f"rank-{rank}.trace.json"

    def rank_arrivals(self, rank: int) -> Path:
        """When `rank` entered its latest collectives; see `observe.arrivals`."""
        return self.metrics / f"rank-{rank}.arrivals.json"

    @property
    def arrivals(self) -> Path:
        """Who waited for whom, joined over all ranks; one line per look (`observe.arrivals`)."""
        return self.directory / "arrivals.jsonl"

    def rank_said(self, rank: int) -> Path:
        """What the script of `rank` told by ``workbench.log``, one JSON object per call."""
        return self.metrics / f"rank-{rank}.said.jsonl"

    @property
    def folders(self) -> tuple[Path, ...]:
        """Those that every run has from the beginning."""
        return (self.config, self.logs, self.metrics, self.control, self.checkpoints)

    def make_folders(self) -> None:
        """Create the folders (not the directory itself, whose creation claims the run id)."""
        for folder in self.folders:
            folder.mkdir(mode=0o700, exist_ok=True)
