"""``push_model``: export a model, compare it with the hub's repository, and upload it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from workbench.errors import UsageError
from workbench.store.layout import RunPaths
from workbench.trained_model.export import OnProgress, exported_model
from workbench.trained_model.exported import ExportedModel, ModelExport
from workbench.trained_model.hub import (
    SAME,
    HubPush,
    Pushed,
    check_owner,
    check_replaced,
    compare,
)
from workbench.trained_model.process import ModelProcess


def push_model(
    paths: RunPaths,
    push: HubPush,
    export: ModelExport | None = None,
    *,
    on_progress: OnProgress | None = None,
) -> tuple[ExportedModel, Pushed]:
    """Upload a run's model with its card to the hub, with the user's own token.

    The folder is written as by `export_model` and stays; one that holds the same export already is
    taken as it is, with what was changed in its card. Token, owner and repository are looked at
    first. The upload is one commit: all files, or none.

    Raises:
        UsageError: no repository is named, it is not the token's user's, it is public, or files
            would be replaced and ``yes`` is not set; and as `export_model`.
        HostError: no token, one that may not do it, no network, no room; and as `export_model`.
        StoreError: the folder cannot be written.
        ModelProcessError: the process that does it failed.
    """
    if push.push is None:
        raise UsageError("Name the repository to push to: --push OWNER/NAME.")
    with ModelProcess() as process:
        seen = _last(process, on_progress, "hub-look", repository=push.push)
        check_owner(push.push, seen)
        exported = exported_model(paths, export, on_progress=on_progress)
        plan = compare(exported.path, push, seen)
        if push.dry_run:
            return exported, plan
        check_replaced(plan, push)
        step = "" if exported.step is None else f" at step {exported.step}"
        done = _last(
            process,
            on_progress,
            "hub-upload",
            repository=push.push,
            folder=str(exported.path),
            files=[file.path for file in plan.files if file.state != SAME],
            create=not plan.exists,
            public=push.public,
            head=seen["head"],
            message=f"{exported.run}{step}, by training-workbench",
        )
    return exported, replace(plan, commit=done["commit"])


def _last(
    process: ModelProcess, on_progress: OnProgress | None, task: str, **request: Any
) -> dict[str, Any]:
    """What the child says at its end."""
    last: dict[str, Any] = {}
    for last in process.ask(task, **request):
        if on_progress is not None and "progress" in last:
            on_progress(last["progress"], last["text"])
    return last
