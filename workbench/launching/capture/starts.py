"""``rank-N.start.json``: who a rank is, written when it starts. Standard library only."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Mapping
from typing import Any

from .writers import write_json


def start_file(folder: str, rank: int) -> str:
    """Where it lies in the run directory `folder`."""
    return os.path.join(folder, "metrics", f"rank-{rank}.start.json")


def write_start(folder: str, rank: int, code: Mapping[str, Any], **facts: Any) -> None:
    """Say that this process is `rank`."""
    document = {
        "rank": rank,
        "time": time.time(),
        "process": identity(),
        "world_size": int(os.environ.get("WORLD_SIZE") or "1"),
        "hostname": os.uname().nodename,
        "python": sys.version.split()[0],
        "attempt_first_step": first_step(),
        "code": code,
        **facts,
    }
    write_json(start_file(folder, rank), document)


def identity() -> dict[str, object]:
    """This process, so that it can be told from a later one with the same number."""
    with open("/proc/self/stat", encoding="utf-8", errors="replace") as file:
        fields = file.read().rpartition(")")[2].split()
    boot = "unknown"
    with contextlib.suppress(OSError), open("/proc/sys/kernel/random/boot_id") as file:
        boot = file.read().strip()
    return {"pid": os.getpid(), "start_ticks": int(fields[19]), "boot_id": boot}


def first_step() -> int:
    """Optimizer steps that the attempts before this one have done."""
    text = os.environ.get("WORKBENCH_FIRST_STEP", "0")
    return int(text) if text.isdecimal() else 0
