"""Refuses what a run is to decide by itself where it could never do so."""

from __future__ import annotations

from pathlib import Path

from workbench.errors import UsageError
from workbench.launching.prepare.request import Request
from workbench.recover.checkpoints import Checkpoint
from workbench.recover.resuming import how_to_resume

_SAVING = ("--checkpoint-every", "--checkpoint-minutes", "--checkpoint-auto")


def saves_nothing(request: Request) -> bool:
    """Whether it is a recipe that is not told to save checkpoints."""
    return request.recipe is not None and not any(
        word.startswith(_SAVING) for word in request.arguments
    )


def check_own_decisions(request: Request) -> None:
    """Refuse a rollback without checkpoints, and rules about values that no one observes.

    Raises:
        UsageError: the message says what is missing.
    """
    recovery = request.options.recovery
    if not request.options.capture and (recovery.rollback_on or recovery.stop_when):
        raise UsageError(
            "--rollback-on and --stop-when need the observed loss: leave --no-capture out."
        )
    if not recovery.rollback_on:
        return
    if request.nodes > 1:
        raise UsageError(
            f"--rollback-on is for runs on one machine, not {request.nodes}. Leave it out."
        )
    if saves_nothing(request):
        raise UsageError(
            "--rollback-on: the recipe saves no checkpoint to go back to. Add --checkpoint-every "
            "100 to its arguments."
        )
    try:
        how_to_resume(request.script, request.recipe, request.arguments, _ANY)
    except UsageError as error:
        raise UsageError(f"--rollback-on: the run could not go back. {error}") from error


_ANY = Checkpoint(
    path=Path("/checkpoint"),
    step=1,
    kind="torch",
    bytes=1,
    saved_at=None,
    sealed=False,
    problem="",
)
