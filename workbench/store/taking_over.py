"""One process of a kind beside a run: the newest one takes over from the one before.

That one may have another address, or credentials that are no longer valid; and when it is about to
leave, the newest must not leave for its sake.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import uuid
from pathlib import Path
from typing import final

_BYTES = 32


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
        """Whether a newer process waits for it."""
        with contextlib.suppress(OSError):
            return os.pread(self._handle, _BYTES, 0) != self._own
        return False

    @staticmethod
    def is_taken(path: Path) -> bool:
        """Whether a process of that kind is at work."""
        try:
            handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(handle)
        return False

    def leave(self) -> None:
        """Give it to who waits."""
        os.close(self._handle)
