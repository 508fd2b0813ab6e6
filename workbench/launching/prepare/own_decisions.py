"""Refuses what a run is to decide by itself where it could never do so."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from workbench.errors import UsageError
from workbench.recover.checkpoints import Checkpoint
from workbench.recover.policy import Recovery
from workbench.recover.resuming import how_to_resume

_SAVING = ("--checkpoint-every", "--checkpoint-minutes", "--checkpoint-auto")


def saves_nothing(recipe: str | None, arguments: Sequence[str]) -> bool:
    """Whether it is a recipe that is not told to save checkpoints."""
    return recipe is not None and not any(word.startswith(_SAVING) for word in arguments)


def check_own_decisions(
    recovery: Recovery,
    *,
    capture: bool,
    nodes: int,
    recipe: str | None,
    script: Path,
    arguments: Sequence[str],
) -> None:
    """Refuse a rollback without checkpoints, and rules about values that no one observes.

    Of a launch, and of a resume that changes one of these.

    Raises:
        UsageError: the message says what is missing.
    """
    if not capture and (recovery.rollback_on or recovery.stop_when):
        raise UsageError(
            "--rollback-on and --stop-when need the observed loss: leave --no-capture out."
        )
    if not recovery.rollback_on:
        return
    if nodes > 1:
        raise UsageError(f"--rollback-on is for runs on one machine, not {nodes}. Leave it out.")
    if saves_nothing(recipe, arguments):
        raise UsageError(
            "--rollback-on: the recipe saves no checkpoint to go back to. Add --checkpoint-every "
            "100 to its arguments."
        )
    try:
        how_to_resume(script, recipe, arguments, _ANY)
    except UsageError as error:
        raise UsageError(f"--rollback-on: the run could not go back. {error}") from error


def refuse_standing_notice(recovery: Recovery, folder: Path) -> None:
    """Refuse to start where the file that announces a pre-emption is there before the run is.

    A file on a shared volume outlives the machine that it was about. `folder`: of the run.

    Raises:
        UsageError: the run would end at once.
    """
    file = recovery.notice_file(folder)
    if file is not None and file.exists():
        raise UsageError(
            f"{file} is there already, which tells that the machine goes away (--preemption): the "
            "run would end at once. Remove that file first."
        )


_ANY = Checkpoint(
    path=Path("/checkpoint"),
    step=1,
    kind="torch",
    bytes=1,
    saved_at=None,
    sealed=False,
    problem="",
)
