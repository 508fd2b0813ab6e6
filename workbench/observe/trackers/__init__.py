"""Trackers: TensorBoard, MLflow, Trackio and W&B (offline), fed from a run's files.

A tracker is fed by a process of its own that only reads the run directory, so it can neither slow
training down nor end it, and it may be attached at any time: what came before is filled in from
step 1, what was fed is not fed again, and steps that a resumed run takes back are taken back there.
Everything stays on this machine: no server is contacted and no port is opened.

    python -m workbench.observe.trackers RUN_DIRECTORY --to tensorboard [--folder F] [--follow]
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from workbench.observe.trackers.places import check, default_folder, log_path, names
from workbench.store.layout import RunPaths
from workbench.store.processes import SAFE_PYTHON

if TYPE_CHECKING:
    from workbench.observe.trackers.progress import Progress

__all__ = ["check", "default_folder", "feed", "follow_command", "log_path", "names"]


def follow_command(paths: RunPaths, name: str, folder: Path | None = None) -> list[str]:
    """The process that fills `name` in and follows the run to its end.

    It writes its own log (`log_path`) and never the caller's output: start it detached, with
    stdin, stdout and stderr on the null device, and without the run's marker in its environment.
    """
    command = [*SAFE_PYTHON, "-m", "workbench.observe.trackers", str(paths.directory)]
    command += ["--to", name, "--follow"]
    return command if folder is None else [*command, "--folder", str(folder)]


def feed(
    paths: RunPaths, name: str, *, follow: bool = False, folder: Path | None = None
) -> Progress:
    """Bring `name` up to date with the run, in this process; with `follow` until the run's end.

    Trackio takes its folder from the environment when it is imported: feed two runs to it in two
    processes, as `follow_command` does.

    Raises:
        UsageError: unknown or not installed, already being fed, or no run directory.
        WorkbenchError: the tracker kept failing; its log has the reason.
    """
    from workbench.observe.trackers.feeding import Feeding  # noqa: PLC0415  (after the check)

    check(name)
    return Feeding(paths, name, folder).run(follow=follow)
