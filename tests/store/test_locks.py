"""Locks of files: a look at a lock keeps no one from it, and a file system may have none."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import time
from pathlib import Path

import pytest

from workbench.errors import StoreError
from workbench.store.detached import is_locked, lock_file


def test_one_has_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    first = lock_file(path)
    assert first is not None
    assert lock_file(path) is None
    assert is_locked(path)
    os.close(first)
    assert not is_locked(path)


def test_a_look_keeps_no_one_from_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.touch()
    looking = os.open(path, os.O_RDONLY)
    fcntl.flock(looking, fcntl.LOCK_SH)
    threading.Thread(target=lambda: (time.sleep(0.05), os.close(looking)), daemon=True).start()
    handle = lock_file(path)
    assert handle is not None
    os.close(handle)


def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(_handle: int, _kind: int) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(StoreError, match=r"cannot be locked: .*not implemented.* that has locks"):
        lock_file(tmp_path / "lock")
    assert not is_locked(tmp_path / "lock")
