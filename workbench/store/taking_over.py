"""One process of a kind beside a run: the newest one takes over from the one before.

That one may have another address, or credentials that are no longer valid; and when it is about to
leave, the newest must not leave for its sake.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import time
import uuid
from pathlib import Path
from typing import final

from workbench.errors import WorkbenchError
from workbench.store.layout import RunPaths
from workbench.store.ownership import check_own
from workbench.store.process_log import log
from workbench.store.status import read_status

_BYTES = 32
_NICE = 10  # training comes first on a busy host
_LOOK_SECONDS = 1.0
_STATUS_SECONDS = 30.0


@final
class Place:
    """The place of such a process: waits for the one that has it, which is asked to leave."""

    def __init__(self, path: Path) -> None:
        """`path`: the file that all of that kind share. Raises OSError: it cannot be opened."""
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        self._handle = os.open(path, flags, 0o600)
        self._own = uuid.uuid4().hex.encode()
        try:
            os.pwrite(self._handle, self._own, 0)
        except OSError:  # a full disk: the one before stays until it leaves by itself
            self._own = os.pread(self._handle, _BYTES, 0)
        fcntl.flock(self._handle, fcntl.LOCK_EX)

    @property
    def is_wanted(self) -> bool:
        """Whether a newer process waits for the place."""
        with contextlib.suppress(OSError):
            return os.pread(self._handle, _BYTES, 0) != self._own
        return False

    def leave(self) -> None:
        """Release it for the process that waits."""
        os.close(self._handle)


class RunWatch:
    """Paces a process that follows a run, and checks now and then whether the run's are gone."""

    def __init__(self, paths: RunPaths) -> None:
        self._paths = paths
        self._misses, self._due = 0, time.monotonic() + _STATUS_SECONDS

    @property
    def gone(self) -> bool:
        """Whether they are, twice in a row: a supervisor may come back in between."""
        return self._misses > 1

    def wait(self) -> None:
        """Until the next look at the run's files."""
        time.sleep(_LOOK_SECONDS)
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + _STATUS_SECONDS
            live = self._paths.exit.exists() or read_status(self._paths).live
            self._misses = 0 if live else self._misses + 1


def begin_following(module: str, act: str, to: str) -> tuple[RunPaths, str] | None:
    """The run and the ``--to`` of this process's arguments; None = it is not this user's run.

    `act`: what is done to the run. `to`: help of the option.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {module}")
    parser.add_argument("run_directory", type=Path)
    parser.add_argument("--to", required=True, help=to)
    options = parser.parse_args()
    paths = RunPaths(options.run_directory.expanduser().absolute())
    with contextlib.suppress(OSError):
        os.nice(_NICE)
    try:
        check_own(paths, act)  # how far it is is written into it
    except WorkbenchError as error:
        log(str(error))
        return None
    return paths, options.to
