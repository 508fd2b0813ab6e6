"""A run is started again (`rerun`), or another one begins at one of its checkpoints (`fork`)."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from workbench.errors import UsageError
from workbench.launching.prepare.build_request import build_request
from workbench.launching.prepare.recorded_environment import is_applied
from workbench.launching.prepare.request import Request
from workbench.launching.resume.resumable import startable_record
from workbench.launching.resume.resume import (
    Continuation,
    ResumedRun,
    changed_words,
    in_another_layout,
    request_in_another_layout,
    with_described,
)
from workbench.launching.resume.run_options import explicit_changes, gone_calibration
from workbench.launching.resume.settings import settings_of
from workbench.launching.resume.starting_point import StartingPoint
from workbench.launching.start.launch_spec import ResumeSpec
from workbench.launching.start.start import begin, record_of
from workbench.launching.steered import dropped_note
from workbench.provenance.differences import differences
from workbench.recover.checkpoints import first_intact
from workbench.recover.script_checkpoints import every_checkpoint, notes_on_passed
from workbench.store.layout import RunPaths
from workbench.store.record import read_run
from workbench.store.run_record import RunRecord
from workbench.store.schema import BY_HAND
from workbench.store.secrets import HIDDEN


def rerun(paths: RunPaths, devices: Sequence[str] = ()) -> ResumedRun:
    """Start a run of its own with the command of this one. See `Run.rerun`.

    Raises:
        ForeignRunError: it is another user's, others can write to it, or its record is not ours.
        UsageError: it cannot be started so any more.
        StoreError: the run store cannot be written.
    """
    run, request = _again(paths, devices)
    resume: ResumeSpec | None = None
    if run.resumed_from is not None:  # a fork: its arguments name the checkpoint
        resume = {
            "run": run.resumed_from.get("run") or "",
            "checkpoint": run.resumed_from.get("checkpoint"),
            "step": run.resumed_from.get("step") or 0,
            "why": BY_HAND,
            "arguments": list(request.arguments),
        }
    again = begin(request, resume, rerun_of=run.run)
    notes = (*request.warnings, *dropped_note(paths))
    return _with_differences(ResumedRun(paths=again, notes=notes), run)


def rerun_request(
    paths: RunPaths, devices: Sequence[str] = ()
) -> tuple[Request, list[dict[str, Any]]]:
    """What `rerun` would start, and what is another now; writes nothing. Raises as `rerun`."""
    run, request = _again(paths, devices)
    return request, _differs_now(run, request)


def fork(
    paths: RunPaths,
    at: int | None = None,
    *,
    arguments: Sequence[str] = (),
    drop: Sequence[str] = (),
    **changes: Any,
) -> ResumedRun:
    """Start a run of its own from a checkpoint of this one. See `Run.fork`.

    Raises:
        ForeignRunError: it is another user's, others can write to it, or its record is not ours.
        UsageError: no checkpoint of that step can be used, or it cannot be started so.
        StoreError: the run store cannot be written.
    """
    branch = _branch(paths, at, arguments, drop, changes)
    return _with_differences(in_another_layout(branch), branch.run)


def fork_request(
    paths: RunPaths,
    at: int | None = None,
    *,
    arguments: Sequence[str] = (),
    drop: Sequence[str] = (),
    **changes: Any,
) -> tuple[Request, list[dict[str, Any]]]:
    """What `fork` would start, and what is another now; writes nothing. Raises as `fork`."""
    branch = _branch(paths, at, arguments, drop, changes)
    request, _ = request_in_another_layout(branch)
    request = replace(request, warnings=(*branch.start.notes, *request.warnings))
    return request, _differs_now(branch.run, request)


def _branch(
    paths: RunPaths,
    at: int | None,
    arguments: Sequence[str],
    drop: Sequence[str],
    changes: Mapping[str, Any],
) -> Continuation:
    run, changed = startable_record(paths), explicit_changes(changes)
    words = changed_words(paths, run, with_described(run, arguments, changed), drop)
    return Continuation(paths, run, _start(paths, at), words, changed)


def _differs_now(run: RunRecord, request: Request) -> list[dict[str, Any]]:
    return differences(run, record_of(request))


def _again(paths: RunPaths, devices: Sequence[str]) -> tuple[RunRecord, Request]:
    again = settings_of(paths)
    run, words, options = again.run, again.arguments, again.options
    if devices not in ((), None):
        options = replace(options, devices=devices)
    variables = {**recorded_variables(run), **options.environment}
    options = replace(options, environment=variables)
    request = build_request(again.target, words, options, again.folder)
    if list(words) != run.arguments[len(run.layout_arguments) :]:
        note = f"Its arguments are those of its latest attempt: {shlex.join(words) or 'none'}."
        request = replace(request, warnings=(note, *request.warnings))
    gone = gone_calibration(run, again.options)
    return run, replace(request, warnings=(*gone, *request.warnings))


def recorded_variables(run: RunRecord) -> dict[str, str]:
    """Those that tuned the training and that a record may set."""
    variables = (run.provenance or {}).get("environment", {})
    applied = {name: value for name, value in variables.items() if is_applied(name)}
    return {name: value for name, value in applied.items() if HIDDEN not in value}


def _start(paths: RunPaths, at: int | None) -> StartingPoint:
    """The newest whole checkpoint, or that of step `at`. Raises UsageError: there is none."""
    name = paths.directory.name
    listed = [saved for saved in every_checkpoint(paths) if saved.step is not None]
    fits = [saved for saved in listed if (saved.usable if at is None else saved.step == at)]
    chosen, passed = first_intact(sorted(fits, key=lambda saved: bool(saved.doubt)))
    if chosen is not None:
        notes = notes_on_passed(listed, chosen) if at is None else ()
        return StartingPoint(at=chosen, why=BY_HAND, notes=(*passed, *notes))
    usable = [saved for saved in listed if not saved.problem and saved.step != at]
    other_steps = sorted(saved.step or 0 for saved in usable)[:20]
    sentences = "".join(f" {sentence}" for sentence in passed)
    if at is None or not other_steps:
        raise UsageError(
            f"{name} has no checkpoint to begin from.{sentences} Recipes save with "
            "--checkpoint-every N. To start it again from the beginning: workbench rerun "
            f"{name}"
        )
    steps = ", ".join(map(str, other_steps))
    raise UsageError(
        f"{name} has no whole checkpoint of step {at}.{sentences} There are those of: {steps}."
    )


def _with_differences(again: ResumedRun, run: RunRecord) -> ResumedRun:
    return replace(again, differs=differences(run, read_run(again.paths) or RunRecord()))
