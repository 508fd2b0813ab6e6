"""Where each file of a run lies. See `schema` for what is in it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class RunPaths:
    """The paths of one run directory; nothing is created by naming it."""

    directory: Path
    """The run directory itself, ``<store>/<run-id>``."""

    @property
    def run(self) -> Path:
        """What was asked (`schema.RunDoc`)."""
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
    def system(self) -> Path:
        """Hardware samples, one JSON line each."""
        return self.directory / "system.jsonl"

    @property
    def report(self) -> Path:
        """The finished run on one page."""
        return self.directory / "report.html"

    @property
    def config(self) -> Path:
        """Folder of the launcher's config files."""
        return self.directory / "config"

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
    def launcher_log(self) -> Path:
        """Output of ``accelerate launch`` itself."""
        return self.logs / "launcher.log"

    @property
    def supervisor_log(self) -> Path:
        """What the supervisor did and why."""
        return self.logs / "supervisor.log"

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

    def rank_start(self, rank: int) -> Path:
        """Who `rank` is (pid and world size), written when it starts."""
        return self.metrics / f"rank-{rank}.start.json"

    def rank_end(self, rank: int) -> Path:
        """How `rank` ended."""
        return self.metrics / f"rank-{rank}.end.json"

    def make_folders(self) -> None:
        """Create the folders (not the directory itself, whose creation claims the run id)."""
        for folder in (self.config, self.logs, self.metrics, self.control, self.checkpoints):
            folder.mkdir(exist_ok=True)
