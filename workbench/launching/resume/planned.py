"""What a resume would start: the dry run of `resume`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from workbench.launching.prepare.placement import recorded_for_ranks
from workbench.launching.resume.resume import next_spec, prepared, request_in_another_layout
from workbench.launching.resume.run_options import stays_in_place
from workbench.launching.steered import dropped_note, still_counts
from workbench.store.layout import RunPaths


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedResume:
    """What a resume would start."""

    same_run: bool
    """Whether it continues in the same run; else in a new one."""
    step: int
    """Optimizer step that it continues from; 0 = the beginning."""
    checkpoint: str | None
    """The checkpoint's path; None = the beginning."""
    command: Sequence[str]
    """What is started, without the environment."""
    config_files: dict[str, str]
    """Path -> text of the files that the command reads; empty in the same run, which has them."""
    notes: tuple[str, ...]
    """What someone should know of it, each one sentence."""


def planned_resume(
    paths: RunPaths,
    checkpoint: str | None = None,
    *,
    arguments: Sequence[str] | None = None,
    drop: Sequence[str] = (),
    read: bool = True,
    **changes: Any,
) -> PlannedResume:
    """What `resume` would start with the same arguments; nothing is written.

    `read`: every byte of the checkpoint, as `resume` does; else its sizes alone.

    Raises:
        ForeignRunError: as `resume`.
        UsageError: as `resume`.
    """
    going_on = prepared(paths, checkpoint, arguments, drop, changes, read=read)
    run, start = going_on.run, going_on.start
    same_run = stays_in_place(going_on.changes)
    if same_run:
        _, spec = next_spec(going_on)
        resumed = spec["resume"]
        assert resumed is not None
        command = [*spec["launcher"], *recorded_for_ranks(run, resumed.get("arguments", ()))]
        files = dict[str, str]()
        notes = (*start.notes, *still_counts(paths, start.typed, resumed["step"]))
    else:
        request, resumed = request_in_another_layout(going_on)
        command, files = list(request.command), request.config_files
        notes = (*start.notes, *request.warnings, *dropped_note(paths))
    return PlannedResume(
        same_run=same_run,
        step=resumed["step"],
        checkpoint=resumed["checkpoint"],
        command=command,
        config_files=files,
        notes=notes,
    )
