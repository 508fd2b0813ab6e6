"""Whether a run can be resumed. The supervisor asks at each end, so this imports little."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from workbench.errors import StoreError, UsageError
from workbench.launching.prepare.acceptance import check_accepted
from workbench.launching.prepare.moved import record_here
from workbench.launching.resume.run_limits import check_limits
from workbench.launching.resume.starting_point import starting_point
from workbench.launching.start.launch_spec import recorded_spec, resume_spec
from workbench.recover.resuming import how_to_resume
from workbench.recover.script_checkpoints import every_checkpoint
from workbench.store.commands import command_for
from workbench.store.files import read_json
from workbench.store.layout import RunPaths
from workbench.store.ownership import check_own
from workbench.store.record import read_record, read_run
from workbench.store.run_record import RunRecord
from workbench.store.starts import read_attempts
from workbench.store.status import read_status


class ResumeOffer(NamedTuple):
    """Whether a run can be resumed; one of the two is ""."""

    why_not: str
    """Why ``workbench resume RUN`` would be refused."""
    how: str
    """What to type, and from where it then continues."""


def why_not_resumable(paths: RunPaths) -> str:
    """Why ``workbench resume RUN`` would be refused; "" = it works."""
    return resumption(paths).why_not


def resumption(paths: RunPaths, end: Mapping[str, Any] | None = None) -> ResumeOffer:
    """Whether ``workbench resume RUN`` works. Every face that offers it asks this.

    Checkpoints are judged by their sizes, so that it is quick. Whatever is wrong with the run's
    files is an answer: an offer must not cost a run its exit.json.

    Args:
        paths: The run.
        end: How the run ends, before exit.json says it.
    """
    try:
        run, _ = record_here(paths, startable_record(paths))
        if end is not None:
            refuse_finished(paths, end, run)
        elif paths.exit.exists() or not read_status(paths).live:
            refuse_finished(paths, read_json(paths.exit) or {}, run)
        check_limits(paths, run)
        start = starting_point(paths, None, read=False)
        spec = recorded_spec(run, latest_words(paths, run))
        resume_spec(spec["arguments"], run, start.at, start.why)
    except (UsageError, StoreError) as error:
        return ResumeOffer(str(error), "")
    except Exception as error:  # noqa: BLE001  (see above)
        return ResumeOffer(f"It cannot be resumed: {error!r}", "")
    action = "Go on with" if start.at is not None else "Start again from the beginning with"
    return ResumeOffer("", f"{action}: {command_for(paths.directory, 'resume')}")


def startable_record(paths: RunPaths) -> RunRecord:
    """run.json of a run that this user may start from it.

    Raises:
        ForeignRunError: it is another user's, others can write to it, or its record is not ours.
        StoreError: it cannot be read.
        UsageError: it is a rehearsal.
    """
    check_own(paths, "resumed")
    run = read_run(paths)
    if run is not None and run.rehearsal is not None:
        raise UsageError(
            f"{run.run} is a rehearsal: nothing was trained, so there is nothing to go on from. "
            "Play it again: workbench rehearse. To train: workbench launch."
        )
    run = read_record(paths)
    check_accepted(paths, run)
    return run


def refuse_finished(paths: RunPaths, ended: Mapping[str, Any], run: RunRecord) -> None:
    """Refuse to go on with a run that did all: UsageError, which says how to give it more."""
    if ended.get("outcome") != "succeeded":
        return
    name = run.run
    again = f"To train again: {command_for(paths.directory, 'rerun')}"
    more = f"It has no checkpoint to train on from. {again}"
    if saved := every_checkpoint(paths):
        more = (
            f"To train on, give it more: {command_for(paths.directory, 'resume')} -- --steps N "
            "(or the script's own option for it)."
        )
        try:
            how_to_resume(Path(run.script), run.recipe, latest_words(paths, run), saved[0])
        except UsageError:
            more = f"Its script has no option that is known to load what it saved. {again}"
    raise UsageError(f"{name} has finished: {ended.get('message')} {more}")


def latest_words(paths: RunPaths, run: RunRecord) -> list[str]:
    """The arguments of the latest attempt that was given others, which may be none at all."""
    changed_arguments = [
        attempt["arguments"]
        for attempt in read_attempts(paths)
        if isinstance(attempt.get("arguments"), list)
    ]
    return [str(word) for word in (changed_arguments[-1] if changed_arguments else run.arguments)]
