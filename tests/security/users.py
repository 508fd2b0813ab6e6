"""Another user of this machine, for real: a forked child that gives up root."""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")


def as_user(uid: int, act: Callable[[], object]) -> object:
    """What `act` returns (JSON) when `uid` does it. Import what it needs before."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
            os.write(write, json.dumps({"value": act()}).encode())
            code = 0
        except BaseException:  # noqa: BLE001  (told to the parent)
            os.write(write, json.dumps({"error": traceback.format_exc()}).encode())
        finally:
            os._exit(code)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        answer = json.loads(pipe.read())
    os.waitpid(child, 0)
    assert "error" not in answer, answer["error"]
    return answer["value"]


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
