"""`launch`, `start` and `attach`: from a script, a checked request or an id to a run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from workbench.describe.checks import require_instance
from workbench.launching.cell.script import tidy
from workbench.launching.prepare.build_request import build_request
from workbench.launching.prepare.options import Launched, LaunchOptions, with_launch_options
from workbench.launching.prepare.request import Request
from workbench.launching.run import Run
from workbench.launching.start.queued import file
from workbench.launching.start.start import begin
from workbench.store.runs import LAST, Store


@with_launch_options
def launch(  # noqa: D417  (the options' help is derived)
    target: Launched, arguments: Sequence[Any], options: LaunchOptions
) -> Run:
    """Start a training run on this host and return its handle within milliseconds.

    Args:
        target: A recipe's name, the path of a Python script, or a `Job` that one of the recipes
            trains. ``launch("train.py", job=job)`` starts a script as the job describes it. Or a
            function, imported in each rank or taken along by its source.
        arguments: The script's arguments; a function's are numbers, texts, lists and dicts.

    Raises:
        UsageError: it cannot be started so; the message says what would work.
        HostError: torch or accelerate is missing here.
        StoreError: the run store cannot be written.
    """
    request = build_request(target, arguments, options)
    try:
        return start(request)
    finally:
        tidy(request.script)


def start(request: Request) -> Run:
    """Claim the run directory, write run.json and the config, start the supervisor.

    With ``queue=True`` it is filed instead, and starts when its devices are free.

    Raises:
        UsageError: no request; another run holds devices that it needs; or it cannot wait in the
            queue.
        StoreError: the run store cannot be written.
    """
    example = "what wb.request makes, as wb.request('gpt'); wb.launch('gpt') starts it at once"
    require_instance("request", Request, request, example)
    return Run(file(request) if request.options.queue else begin(request))


def attach(run: str | os.PathLike[str] = LAST, store: str | os.PathLike[str] | None = None) -> Run:
    """Handle of an existing run by id, unique prefix, name, path or "last". Nothing is started.

    "last" is the newest run that is no trial of a sweep or a study, and no measurement.

    Raises:
        RunNotFoundError: no such run in the store.
    """
    return Run(Store(store).locate(run))
