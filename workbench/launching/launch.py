"""`launch`, `start` and `attach`: from a script, a checked request or an id to a run."""

from __future__ import annotations

import os
from collections.abc import Sequence

from workbench.describe.job import Job
from workbench.launching.prepare.build_request import build_request
from workbench.launching.prepare.options import LaunchOptions, with_launch_options
from workbench.launching.prepare.request import Request
from workbench.launching.run import Run
from workbench.launching.start.start import begin
from workbench.store.runs import LAST, Store


@with_launch_options
def launch(  # noqa: D417  (the options' help is derived)
    target: str | os.PathLike[str] | Job, arguments: Sequence[str], options: LaunchOptions
) -> Run:
    """Start a training run on this host and return its handle within milliseconds.

    Args:
        target: A recipe's name, the path of a Python script, or a `Job` that one of the recipes
            trains. ``launch("train.py", job=job)`` starts a script as the job describes it.
        arguments: The script's arguments.

    Raises:
        UsageError: it cannot be started so; the message says what would work.
        HostError: torch or accelerate is missing here.
        StoreError: the run store cannot be written.
    """
    return start(build_request(target, arguments, options))


def start(request: Request) -> Run:
    """Claim the run directory, write run.json and the config, start the supervisor.

    Raises:
        StoreError: the run store cannot be written.
    """
    return Run(begin(request))


def attach(run: str = LAST, store: str | os.PathLike[str] | None = None) -> Run:
    """Handle of an existing run by id, unique prefix, name or "last". Nothing is started.

    Raises:
        RunNotFoundError: no such run in the store.
    """
    return Run(Store(store).find(run))
