"""``workbench track``: feed a run, living or ended, to an experiment tracker."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

import workbench as wb
from workbench.cli.terminal import RunArgument, StoreOption, console
from workbench.observe.trackers import feed, names
from workbench.store.layout import RunPaths

_LOOK = {
    "tensorboard": "tensorboard --logdir {place}",
    "mlflow": "mlflow ui --backend-store-uri sqlite:///{place}/mlflow.db  # pip install mlflow",
    "trackio": "TRACKIO_DIR={place} trackio show",
    "wandb": "wandb sync {place}/wandb/offline-run-*",
}


def track(
    run: RunArgument = "last",
    *,
    to: Annotated[str, typer.Option(help=f"One of {', '.join(names())}.")] = "tensorboard",
    folder: Annotated[
        Path | None, typer.Option(help="Output folder [default: trackers/ of the run].")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Keep sending until the run ends.")
    ] = False,
    store: StoreOption = None,
) -> None:
    """Send a run's curves, samples and outcome to a tracker, starting at its first step."""
    handle = wb.attach(run, store)
    place = feed(RunPaths(handle.directory), to, follow=follow, folder=folder).folder
    console.print(f"{handle.id} is in {to}: {place}", markup=False, soft_wrap=True)
    look = _LOOK.get(to)
    if look is not None:
        line = look.format(place=shlex.quote(place))
        console.print(f"view it with: {line}", markup=False, soft_wrap=True)
