"""Torch's launcher keeps its folder in the run directory, and no empty one when it has ended.

It makes one at each start, where ranks leave what they raised, and never removes it: beside the
other temporary files these would fill a machine's disk over months.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import glob
import os
import tempfile
from collections.abc import Callable
from typing import Any

_PREFIX = "torchelastic_"  # as torch's own


def patch(run: str) -> Callable[[Any], None]:
    """An action for torch.distributed.elastic.multiprocessing.api in a launcher of the run."""

    def place(module: Any) -> None:
        specs = module.DefaultLogsSpecs
        make = specs.__init__

        @functools.wraps(make)
        def in_run_directory(self: Any, log_dir: str | None = None, *args: Any, **more: Any) -> Any:
            make(self, log_dir or _own_folder(os.path.join(run, "logs")), *args, **more)

        specs.__init__ = in_run_directory

    return place


def _own_folder(logs: str) -> str | None:
    """None = torch's own choice: the disk refuses."""
    with contextlib.suppress(OSError):
        folder = tempfile.mkdtemp(prefix=_PREFIX, dir=logs)
        atexit.register(_remove_empty, folder)
        return folder
    return None


def remove_left(run: str) -> None:
    """Remove what launchers of the run left that were killed: none is at work any more."""
    for folder in glob.glob(os.path.join(glob.escape(run), "logs", f"{_PREFIX}*")):
        _remove_empty(folder)


def _remove_empty(root: str) -> None:
    """What a rank has written there stays: its error is named by this path."""
    for folder, _, _ in os.walk(root, topdown=False):
        with contextlib.suppress(OSError):
            os.rmdir(folder)
