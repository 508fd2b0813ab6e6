"""`launch` and `start`: from a wish, or a checked request, to a run."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from workbench.describe import Strategy
from workbench.launch.dry_run import Request
from workbench.launch.request import request as dry_run
from workbench.launch.run import Run
from workbench.launch.starting import begin
from workbench.recover.policy import Recovery
from workbench.store.runs import Store


def launch(
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
    recovery: Recovery | None = None,
    trackers: Sequence[str] = (),
    nodes: int = 1,
    address: str | None = None,
) -> Run:
    """Start a training run on this host and return its handle within milliseconds.

    Arguments and errors are those of `workbench.launch.request.request`.

    Raises:
        StoreError: the run store cannot be written.
    """
    checked = dry_run(
        target,
        arguments,
        strategy=strategy,
        processes=processes,
        options=options,
        cpu=cpu,
        name=name,
        store=store,
        wrap=wrap,
        capture=capture,
        port=port,
        environment=environment,
        recovery=recovery,
        trackers=trackers,
        nodes=nodes,
        address=address,
    )
    return start(checked)


def start(request: Request) -> Run:
    """Claim the run directory, write run.json and the config, start the supervisor.

    Raises:
        StoreError: the run store cannot be written.
    """
    return Run(begin(request))
