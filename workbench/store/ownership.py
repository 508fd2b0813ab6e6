"""Whose run it is. Every command that acts on a run asks here first; reading needs no permission.

A run directory says what to start (command, environment, hooks), which processes to signal, and
where to write. Whoever can write there could otherwise act with the rights of the next user who
looks at it. So only a run whose directory and files belong to this very user, and that nobody else
can write to, is acted on; any other is read-only. Root is a user like any other here.
"""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Iterator
from pathlib import Path

from workbench.errors import ForeignRunError, RunNotFoundError
from workbench.store.layout import RunPaths

TRUSTED_VARIABLE = "WORKBENCH_TRUSTED_STORES"
"""Stores on file systems that keep no owners (some mounts of Windows, NFS with root squashed): a
list of folders, separated by colons, whose runs count as one's own."""
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_OTHERS_ENTER = stat.S_IXGRP | stat.S_IXOTH
_OF_THE_TRAINING = frozenset({"logs", "metrics"})
_GONE = "its directory is gone, deleted or moved"
_MAX_ENTRIES = 200_000  # far beyond what a run of a thousand ranks has


def foreign_reason(paths: RunPaths, *, own_links: bool = False) -> str | None:
    """Why this run is not to be acted on by this user; None = it is their own.

    Checked are the run directory, what lies in it, and the folders whose content decides what is
    started, signalled or overwritten. What checkpoints hold is checked where one is loaded.
    `own_links`: allow symbolic links of this user below it, for actions that follow none, such as
    deleting.
    """
    if in_trusted_store(paths.directory):
        return None
    try:
        about = os.lstat(paths.directory)
    except OSError as error:
        is_gone = isinstance(error, FileNotFoundError)
        return _GONE if is_gone else f"it cannot be examined: {error.strerror or error}"
    reason = _reason("its directory", about, closed=False)
    if reason is not None:
        return reason
    closed = not about.st_mode & _OTHERS_ENTER  # then modes below it matter no more
    folders = (paths.config, paths.control, paths.logs, paths.metrics, paths.nodes)
    try:
        for part, status, printed in _parts(paths.directory, folders):
            link = own_links and stat.S_ISLNK(status.st_mode) and status.st_uid == os.geteuid()
            reason = None if link else _reason(part, status, closed=closed or printed)
            if reason is not None:
                return reason
    except OSError as error:
        return f"{error.filename or 'a part of it'} cannot be examined: {error.strerror or error}"
    return _checkpoints_reason(paths, closed=closed)


def check_own(paths: RunPaths, action: str, *, own_links: bool = False) -> None:
    """Refuse to act on a run that others own or can write to.

    `action` completes "cannot be …", as in "stopped"; `own_links` as in `foreign_reason`.

    Raises:
        ForeignRunError: it is not this user's alone; the message says why and what to do.
        RunNotFoundError: it is gone.
    """
    reason = foreign_reason(paths, own_links=own_links)
    if reason == _GONE:
        raise RunNotFoundError(f"{paths.directory.name} cannot be {action}: {reason}.")
    if reason is not None:
        raise ForeignRunError(
            f"{paths.directory.name} cannot be {action} by {user_name(os.geteuid())}: {reason}. "
            "It can be read only (show, logs, metrics, diagnose, attach). Act as the user who owns "
            f"it, or copy it and take ownership; see {TRUSTED_VARIABLE} for file systems without "
            "owners."
        )


def foreign_part(path: Path) -> str | None:
    """Why a checkpoint is not this user's, as the end of a sentence; None = it is.

    Its files are written with the training's own umask, so a group may be able to write to them;
    everybody may not, unless no one else can reach them.
    """
    if in_trusted_store(path):
        return None
    closed = in_closed_folder(path)
    try:
        for part, about in ((path.name, path.stat()), *_tree(str(path))):
            if about.st_uid != os.geteuid():
                return f"{part} belongs to {user_name(about.st_uid)}"
            if about.st_mode & stat.S_IWOTH and not (closed or stat.S_ISLNK(about.st_mode)):
                return f"everybody can write to {part}"
    except OSError as error:
        return f"it cannot be examined: {error.strerror or error}"
    return None


def in_closed_folder(path: Path) -> bool:
    """Whether a folder above `path` is this user's and lets no one else in."""
    try:
        above = [folder.stat() for folder in path.resolve().parents]
    except OSError:
        return False
    return any(
        about.st_uid == os.geteuid() and not about.st_mode & _OTHERS_ENTER for about in above
    )


def foreign_folder(folder: Path) -> str | None:
    """Why a folder of ours, not a run's, is not this user's alone; None = it is."""
    if in_trusted_store(folder):
        return None
    try:
        about = os.lstat(folder)
        closed = not about.st_mode & _OTHERS_ENTER  # then modes below it matter no more
        reason = _reason(folder.name, about, closed=False)
        if reason is not None:
            return reason
        for part, status in _tree(str(folder)):
            reason = _reason(part, status, closed=closed)
            if reason is not None:
                return reason
    except OSError as error:
        return f"it cannot be examined: {error.strerror or error}"
    return None


def check_own_folder(folder: Path, kind: str) -> None:
    """Refuse a queue or sweep (`kind`) whose files, which say what is started, others could write.

    Raises:
        ForeignRunError: it is not this user's alone.
    """
    reason = foreign_folder(folder)
    if reason is not None:
        raise ForeignRunError(
            f"{user_name(os.geteuid())} cannot use the {kind} {folder}: {reason}. Use a store of "
            "your own: --store DIR."
        )


def user_name(uid: int) -> str:
    """The name of a user; "user 1234" where this machine knows none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def in_trusted_store(path: Path) -> bool:
    """Whether it lies in a store that `TRUSTED_VARIABLE` names."""
    roots = [part for part in os.environ.get(TRUSTED_VARIABLE, "").split(os.pathsep) if part]
    place = os.path.realpath(path)
    return any(
        os.path.commonpath([place, os.path.realpath(root)]) == os.path.realpath(root)
        for root in roots
    )


def _reason(part: str, about: os.stat_result, *, closed: bool) -> str | None:
    """`closed`: others cannot reach it, or nothing acts on it, so that its mode does not matter."""
    if stat.S_ISLNK(about.st_mode):
        return f"{part} is a symbolic link"
    if about.st_uid != os.geteuid():
        return f"{part} belongs to {user_name(about.st_uid)}"
    if about.st_mode & _OTHERS_WRITE and not closed:
        return f"others can write to {part} (mode {stat.S_IMODE(about.st_mode):o})"
    return None


def _parts(
    directory: Path, folders: tuple[Path, ...]
) -> Iterator[tuple[str, os.stat_result, bool]]:
    """What lies in the run directory, and in `folders` all the way down.

    The last value marks files of the training itself: their mode is its umask's, and nothing in
    them is acted on.
    """
    down = {folder.name for folder in folders}
    with os.scandir(directory) as entries:
        for entry in entries:
            about = _status(entry)
            if about is None:
                continue
            if entry.name == "checkpoints" and entry.is_symlink():
                continue  # people move them to a larger disk: judged by where it leads
            yield entry.name, about, False
            if entry.name in down and stat.S_ISDIR(about.st_mode):
                printed = entry.name in _OF_THE_TRAINING
                for name, status in _tree(entry.path):
                    yield f"{entry.name}/{name}", status, printed and stat.S_ISREG(status.st_mode)


def _tree(root: str) -> Iterator[tuple[str, os.stat_result]]:
    folders, seen = [root], 0
    while folders:
        folder = folders.pop()
        with os.scandir(folder) as entries:
            for entry in entries:
                seen += 1
                if seen > _MAX_ENTRIES:
                    raise OSError(0, f"more than {_MAX_ENTRIES:,} files", root)
                about = _status(entry)
                if about is None:
                    continue
                yield os.path.relpath(entry.path, root), about
                if stat.S_ISDIR(about.st_mode):
                    folders.append(entry.path)


def _status(entry: os.DirEntry[str]) -> os.stat_result | None:
    """None for what has gone since it was listed: a file that is being replaced."""
    try:
        return entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return None


def _checkpoints_reason(paths: RunPaths, *, closed: bool) -> str | None:
    try:
        if not paths.checkpoints.is_symlink():
            return None
        if os.lstat(paths.checkpoints).st_uid != os.geteuid():
            return "checkpoints is a symbolic link of another user"
        return _reason("checkpoints", paths.checkpoints.stat(), closed=closed)
    except OSError as error:
        return f"checkpoints cannot be examined: {error.strerror or error}"
