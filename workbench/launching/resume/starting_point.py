"""Where a run that is resumed goes on: at a checkpoint, or at its beginning."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path

from workbench.errors import UnknownNameError, UsageError
from workbench.launching.resume.attempts import furthest
from workbench.recover.checkpoints import (
    Checkpoint,
    list_checkpoints,
    newest_intact,
    verify,
)
from workbench.recover.resuming import how_to_resume
from workbench.recover.script_checkpoints import (
    every_checkpoint,
    named_checkpoint,
    notes_on_passed,
    states_of_script,
)
from workbench.store.commands import command_for
from workbench.store.layout import RunPaths
from workbench.store.run_record import RunRecord
from workbench.store.schema import BY_HAND

_BEAT_SECONDS = 1.0
BEGINNING = "none"
"""What to name instead of a checkpoint to start again from the beginning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartingPoint:
    """Where the next attempt begins."""

    at: Checkpoint | None
    """The checkpoint, of a known step; None = the beginning."""
    why: str
    """For the record of attempts."""
    notes: tuple[str, ...] = ()
    """What someone should know of it."""
    in_arguments: bool = False
    """Whether the arguments given now tell the script itself."""
    typed: tuple[str, ...] = ()
    """The arguments that are given or dropped now."""


def starting_point(paths: RunPaths, name: str | None, *, read: bool = True) -> StartingPoint:
    """The newest whole checkpoint, the one of that name or path, or the beginning.

    Args:
        paths: The run.
        name: A checkpoint's name or path, `BEGINNING`, or None for the newest.
        read: Read every byte of it; else look at sizes alone.

    Raises:
        UsageError: it is damaged, no one knows it, or all that there are cannot be used.
    """
    if name == BEGINNING:
        return _beginning("")
    if name is not None:
        return _at(paths, _named(paths, name))
    checkpoints = list_checkpoints(paths)
    own, passed = _newest(paths, checkpoints, read=read)
    if own is not None:
        return _at(paths, own, passed)
    script_states = states_of_script(paths, checkpoints)
    stepped = [checkpoint for checkpoint in script_states if checkpoint.step is not None]
    newest, more = _newest(paths, stepped, read=read)
    if newest is not None:
        return _at(paths, newest, [*passed, *more, *notes_on_passed(script_states, newest)])
    if script_states:
        raise UsageError(_none_by_itself(paths, script_states))
    if checkpoints:
        again = command_for(paths.directory, "resume", "--checkpoint", BEGINNING)
        raise UsageError(
            f"{paths.directory.name} has no whole checkpoint. {' '.join(passed)} To start again "
            f"from the beginning: {again}"
        )
    return _beginning(f"{paths.directory.name} has no checkpoint: it starts from the beginning.")


def start_by_itself(
    paths: RunPaths, run: RunRecord, arguments: Sequence[str], beat: Callable[[], None]
) -> tuple[Checkpoint | None, list[str]]:
    """Where a run goes on that a program starts again; None = the beginning.

    As `starting_point`, but with no one to ask: what a person would have to name is not taken.
    The sentences tell what was passed over, and why. Every byte is read: on a thread, and `beat` is
    called once a second meanwhile, so that no one takes the caller for dead.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="verify") as pool:
        newest = pool.submit(_newest_by_itself, paths, run, arguments)
        while not wait([newest], timeout=_BEAT_SECONDS).done:
            beat()
        return newest.result()


def _newest_by_itself(
    paths: RunPaths, run: RunRecord, arguments: Sequence[str]
) -> tuple[Checkpoint | None, list[str]]:
    checkpoints = list_checkpoints(paths)
    own, passed = newest_intact(paths, checkpoints)
    if own is not None:
        return own, passed
    states = states_of_script(paths, checkpoints)
    newest, more = newest_intact(paths, [state for state in states if state.step is not None])
    passed += [*more, *notes_on_passed(states, newest)]
    if newest is None:
        return None, passed
    try:
        how_to_resume(Path(run.script), run.recipe, arguments, newest)
    except UsageError as error:  # it may find its checkpoint without being told
        return None, [*passed, f"{newest.name} is not taken: {error}"]
    return newest, passed


def _none_by_itself(paths: RunPaths, states: Sequence[Checkpoint]) -> str:
    """Why none of these checkpoints is taken without being named."""
    name, doubtful = (
        paths.directory.name,
        next((saved for saved in states if saved.doubt), None),
    )
    why = f"No checkpoint of {name} says its step, so none is taken by itself"
    if doubtful is not None:
        why = (
            f"No checkpoint is surely one of {name}, so none is taken by itself ({doubtful.name}: "
            f"{doubtful.doubt})"
        )
    return (
        f"{why}: {', '.join(str(checkpoint.path) for checkpoint in states[:5])}. Name one: "
        f"{command_for(paths.directory, 'resume', '--checkpoint', 'PATH')}; or --checkpoint "
        f"{BEGINNING} starts from the beginning."
    )


def _beginning(note: str) -> StartingPoint:
    return StartingPoint(
        at=None, why=f"{BY_HAND} from the beginning", notes=(note,) if note else ()
    )


def _newest(
    paths: RunPaths, checkpoints: Sequence[Checkpoint], *, read: bool
) -> tuple[Checkpoint | None, list[str]]:
    if read:
        return newest_intact(paths, checkpoints)
    usable = (checkpoint for checkpoint in checkpoints if checkpoint.usable)
    return next(usable, None), []


def _at(paths: RunPaths, chosen: Checkpoint, passed: Sequence[str] = ()) -> StartingPoint:
    """Go on at a checkpoint. Where it does not say its step, no step of the curve is cut off."""
    if chosen.step is not None:
        return StartingPoint(at=chosen, why=BY_HAND, notes=tuple(passed))
    step = furthest(paths)
    note = (
        f"Nothing in {chosen.name} says its step: the curve is kept, and steps are counted on from "
        f"{step}."
    )
    return StartingPoint(
        at=replace(chosen, step=step), why=f"{BY_HAND}; {note}", notes=(*passed, note)
    )


def _named(paths: RunPaths, name: str) -> Checkpoint:
    checkpoints = every_checkpoint(paths)
    absolute = Path(name).expanduser().absolute()
    fits = [
        checkpoint
        for checkpoint in checkpoints
        if checkpoint.name == name or checkpoint.path == absolute
    ]
    if not fits and absolute.exists():
        outside = named_checkpoint(absolute)
        fits = [outside]
    if not fits:
        if not checkpoints:
            raise UsageError(
                f"{paths.directory.name} has no checkpoint, and there is no file or folder {name}. "
                "Name an existing one, or leave --checkpoint out to start from the beginning. "
                "Recipes save with --checkpoint-every N."
            )
        raise UnknownNameError.near(
            "checkpoint", name, [checkpoint.name for checkpoint in checkpoints]
        )
    problem = verify(fits[0])
    if problem:
        other_names = [
            checkpoint.name
            for checkpoint in checkpoints
            if checkpoint is not fits[0] and not checkpoint.problem
        ]
        hint = f" Others: {', '.join(other_names[:5])}." if other_names else ""
        raise UsageError(f"The checkpoint {name} cannot be used: {problem}.{hint}")
    return fits[0]
