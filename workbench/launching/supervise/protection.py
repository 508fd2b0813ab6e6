"""Keeps a supervisor at its post: the kernel kills it last, and its watcher is brought back."""

from __future__ import annotations

import os
from pathlib import Path
from subprocess import Popen
from typing import TYPE_CHECKING

from workbench.launching.log import log
from workbench.store.layout import RunPaths
from workbench.store.processes import identify
from workbench.store.schema import ProcessDoc

if TYPE_CHECKING:
    from workbench.launching.start.launch_spec import LaunchSpec

_LOWER = 500  # below what it was, where the kernel lets us (root)
_HIGHER = 200  # of the ranks, where it does not
_MAX_SCORE = 1000


def lower_oom_score() -> int:
    """Let the kernel kill others before this process when memory runs out.

    Returns:
        What the score of the training must be, so that it is chosen first: the one we had, or,
        where no one but root may go lower, a higher one.
    """
    try:
        before = int(Path("/proc/self/oom_score_adj").read_text())
    except (OSError, ValueError):
        before = 0
    if _set_score("self", max(-_MAX_SCORE, before - _LOWER)):
        return before
    return min(_MAX_SCORE, before + _HIGHER)


def set_oom_score(pid: int, score: int) -> None:
    """Give a process, and what it starts from now on, this score; its own affair if it is gone."""
    _set_score(str(pid), score)


def _set_score(process: str, score: int) -> bool:
    try:
        Path(f"/proc/{process}/oom_score_adj").write_text(str(score))
    except OSError:
        return False
    return True


def _is_watcher(pid: int, paths: RunPaths) -> bool:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return {b"workbench.launching.supervise.watcher", os.fsencode(paths.directory)} <= set(words)


class WatcherLink:
    """The supervisor's side of its watcher: started again when it is gone."""

    def __init__(self, paths: RunPaths) -> None:
        self._paths = paths
        self._parent = os.getppid()
        self._began_watched = _is_watcher(self._parent, paths)
        self._child: Popen[bytes] | None = None
        self._process: ProcessDoc | None = None

    @property
    def parent(self) -> int | None:
        """The watcher that forked us, to which orphans of a supervisor before us came; None: gone.

        Never whatever else adopted us: that one has children of the whole machine.
        """
        return self._parent if self._began_watched and os.getppid() == self._parent else None

    def process(self) -> ProcessDoc | None:
        """The watcher that would bring us back; None: gone."""
        child = self._child
        pid = child.pid if child is not None and child.poll() is None else self.parent
        if self._process is None or self._process["pid"] != pid:
            self._process = None if pid is None else identify(pid)
        return self._process

    def check(self, spec: LaunchSpec | None) -> int | None:
        """Start a watcher if there is none; returns its pid if it was started just now."""
        if self._child is None and os.getppid() == self._parent:
            return None
        if self._child is not None and self._child.poll() is None:
            return None
        from workbench.launching.start.supervisor_process import spawn_supervisor  # noqa: PLC0415  (seldom needed)

        log("the watcher is gone: starting another one")
        try:
            self._child = spawn_supervisor(self._paths, spec, supervisor_pid=os.getpid())
        except OSError as error:
            log(f"no watcher could be started: {error}")
            return None
        return self._child.pid
