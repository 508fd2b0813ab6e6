"""What the push before left there: whether a new one may replace it, and what of it stays."""

from __future__ import annotations

from collections.abc import Mapping

from workbench.errors import StorageError
from workbench.recover.checkpoints import list_checkpoints
from workbench.storage.manifest import RemoteCheckpoint, RemoteFile, RemoteRun
from workbench.storage.remote import Remote
from workbench.storage.selection import place_of
from workbench.store.layout import RunPaths


def check_same(remote: Remote, before: RemoteRun | None, marker: str, attempts: int) -> None:
    """Refuse to write over what another run, or a later state of this one, left there."""
    if before is None:
        return
    if before.marker != marker:
        raise StorageError(
            f"{remote.url} holds another run of that name. Push to another folder, or remove that "
            "one there."
        )
    if before.attempts > attempts:
        raise StorageError(
            f"{remote.url} holds a later state (started {before.attempts} times) than this copy "
            f"(started {attempts} times): the run was resumed elsewhere. Push to another folder."
        )


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


def _is_part(path: str, checkpoint: RemoteCheckpoint) -> bool:
    inside = path == checkpoint.path or path.startswith(f"{checkpoint.path}/")
    return inside or path == checkpoint.manifest
