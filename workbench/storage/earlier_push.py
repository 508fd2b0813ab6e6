"""What the push before left there: whether a new one may replace it, and what of it stays."""

from __future__ import annotations

from collections.abc import Mapping

from workbench.errors import StorageError
from workbench.recover.checkpoints import list_checkpoints
from workbench.storage.manifest import RemoteCheckpoint, RemoteFile, RemoteRun
from workbench.storage.remote import Remote, RemoteObject
from workbench.storage.selection import place_of
from workbench.store.layout import RunPaths
from workbench.store.starts import attempts_of, start_times

_UNDER_WAY_SECONDS = 24 * 3600.0  # a push may take as long on a slow line


def check_same(remote: Remote, before: RemoteRun | None, marker: str, paths: RunPaths) -> None:
    """Refuse to write over what another run, or another copy that goes on too, left there."""
    if before is None:
        return
    if before.marker != marker:
        raise StorageError(
            f"{remote.url} holds another run of that name. Push to another folder, or remove that "
            "one there."
        )
    attempts = attempts_of(paths)
    if before.attempts > attempts or not goes_on_from(paths, before):
        raise StorageError(
            f"{remote.url} holds a state (started {before.attempts} times) that this copy (started "
            f"{attempts} times) did not go on from: the run was resumed elsewhere. Push to another "
            "folder."
        )


def goes_on_from(paths: RunPaths, pushed: RemoteRun) -> bool:
    """Whether the start that was the last one there is one of this copy's own."""
    return pushed.started_at is None or pushed.started_at in start_times(paths)


def known_files(before: RemoteRun | None) -> dict[str, RemoteFile]:
    """By path, the files whose pieces need not be read again to know them.

    Only of a push that this user's key signed: the next one signs all that it takes over.
    """
    if before is None or not before.is_ours:
        return {}
    return {file.path: file for file in before.files}


def kept_checkpoints(
    paths: RunPaths, before: RemoteRun | None, there: Mapping[str, int]
) -> list[tuple[RemoteCheckpoint, list[RemoteFile]]]:
    """The checkpoints that stay where none could be sent in their place, newest first.

    A script that keeps the latest one may remove it while it is sent, and a disk may lose them all:
    what lies there is then the only one. What the run has given up is left out. `there`: bytes of
    each piece.
    """
    if before is None or not before.is_ours:
        return []
    given_up = {place_of(paths, saved) for saved in list_checkpoints(paths) if saved.abandoned}
    kept = list[tuple[RemoteCheckpoint, list[RemoteFile]]]()
    for checkpoint in before.checkpoints:
        files = [file for file in before.files if _is_part(file.path, checkpoint)]
        pieces = (piece for file in files for piece in file.pieces)
        is_given_up = checkpoint.path in given_up
        if files and not is_given_up and all(there.get(digest) == size for digest, size in pieces):
            kept.append((checkpoint, files))
    return kept


def left_behind(there: dict[str, RemoteObject]) -> set[str]:
    """What is too old to be of a push that is under way; pushes that failed leave such pieces.

    By the address's own clock: the newest piece tells how late it is there at least.
    """
    written_at = {digest: stored.written_at for digest, stored in there.items()}
    newest = max((at for at in written_at.values() if at is not None), default=0.0)
    return {
        digest
        for digest, at in written_at.items()
        if at is not None and newest - at > _UNDER_WAY_SECONDS
    }


def _is_part(path: str, checkpoint: RemoteCheckpoint) -> bool:
    inside = path == checkpoint.path or path.startswith(f"{checkpoint.path}/")
    return inside or path == checkpoint.manifest
