"""Another user of this machine, for real: a thread that gives up root."""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

NOBODY = 65534
_LIBC = ctypes.CDLL(None, use_errno=True)
_CALLS = {  # of the kernel, by their numbers
    "x86_64": {"setgroups": 116, "setresuid": 117, "setresgid": 119},
    "aarch64": {"setgroups": 159, "setresuid": 147, "setresgid": 149},
}
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")


def as_user(uid: int, act: Callable[[], object]) -> object:
    """What `act` returns when `uid` does it: in a thread that gave up root.

    The kernel keeps user and groups per thread; only the C library's own functions change all of
    them. So nothing is forked from a process with threads, and what `act` does is refused alike.
    """

    def give_up_root() -> object:
        for call, *words in (
            ("setgroups", 0, 0),
            ("setresgid", *[uid] * 3),
            ("setresuid", *[uid] * 3),
        ):
            if _LIBC.syscall(_CALLS[platform.machine()][call], *words):
                raise OSError(ctypes.get_errno(), f"{call} was refused")
        assert os.geteuid() == uid
        return act()

    with ThreadPoolExecutor(1) as other:
        answer = other.submit(give_up_root).result()
    assert os.geteuid() == 0
    return answer


def give(folder: Path, uid: int) -> None:
    """Make `folder` and all in it the property of `uid`, readable by everybody."""
    for path in [folder, *folder.rglob("*")]:
        os.chown(path, uid, uid, follow_symlinks=False)
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() else 0o644)


def reachable(folder: Path) -> None:
    """Let everybody enter the folder and those it lies in."""
    for one in (folder, *folder.parents[:3]):
        one.chmod(0o755)
