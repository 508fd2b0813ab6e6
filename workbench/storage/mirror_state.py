"""``mirror.json``: how far the copy of a run at an address is, as the process beside it tells."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from workbench.store.detached import is_locked
from workbench.store.files import read_json, write_json_atomic
from workbench.store.layout import RunPaths
from workbench.store.processes import SAFE_PYTHON
from workbench.store.shapes import fit_as
from workbench.units import format_bytes, format_seconds

_SILENT_SECONDS = 300.0  # it tells at least once a minute, also in the middle of a transfer
_HANGS_SECONDS = 3600.0  # to read a large checkpoint takes a while, in which it tells nothing
_LOOK_SECONDS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorState:
    """The mirror of a run as of its last word."""

    url: str
    """The folder of runs; the copy is ``URL/RUN``."""
    last_good_at: float | None = None
    """When all of the run was there last, Unix seconds; None = not yet."""
    last_step: int | None = None
    """Step of the newest checkpoint that is there."""
    sent_bytes: int = 0
    """All that was sent."""
    failing_since: float | None = None
    """Unix seconds; None = the last attempt succeeded."""
    error: str | None = None
    """Why the last attempt failed."""
    final: bool = False
    """Whether the run has ended and all of it is there."""
    told_at: float = 0.0
    """When this was written."""

    def document(self) -> dict[str, Any]:
        """Plain JSON form."""
        return asdict(self)

    def problem(self, now: float) -> str | None:
        """What is wrong with it, as a sentence; None = nothing. `now`: Unix seconds."""
        if self.failing_since is not None:
            lasting = format_seconds(max(0.0, now - self.failing_since))
            return f"The mirror has failed for {lasting}: {self.error}"
        if not self.final and self.told_at - now > _SILENT_SECONDS:  # it tells often: it is gone
            return "The process that mirrors has said nothing since the clock was set back."
        if not self.final and now - self.told_at > _SILENT_SECONDS:
            silent = format_seconds(now - self.told_at)
            return f"The process that mirrors has said nothing for {silent}."
        return None

    def sentence(self, now: float) -> str:
        """Its state in one line."""
        if self.last_good_at is None:
            state = "nothing has arrived yet"
        else:
            step = "no checkpoint yet" if self.last_step is None else f"step {self.last_step}"
            state = f"{step}, {format_seconds(max(0.0, now - self.last_good_at))} ago"
        state = "complete" if self.final else state
        problem = self.problem(now)
        line = f"mirror {self.url}: {state}, {format_bytes(self.sent_bytes)} sent"
        return line if problem is None else f"{line}. {problem}"


def read_mirror(paths: RunPaths) -> MirrorState | None:
    """What the mirror told last; None = the run has none, or it has told nothing yet."""
    document = read_json(paths.directory / "mirror.json")
    if document is None:
        return None
    fitted: dict[str, Any] = {"url": "n/a", **fit_as(MirrorState, document)}
    return MirrorState(**fitted)


def write_mirror(paths: RunPaths, state: MirrorState) -> None:
    """Keep it; raises OSError."""
    write_json_atomic(paths.directory / "mirror.json", state.document())


def mirror_lock(paths: RunPaths) -> Path:
    """The `store.taking_over.Place` of the process that mirrors."""
    return paths.logs / "mirror.lock"


def mirror_command(paths: RunPaths, url: str) -> list[str]:
    """The process that keeps the copy in step until the run has ended."""
    return [*SAFE_PYTHON, "-m", "workbench.storage", str(paths.directory), "--to", url]


def await_last_copy(paths: RunPaths, resumed: Callable[[], bool] = lambda: False) -> bool:
    """Wait until no process mirrors the run that has ended, or it is resumed; False: that hangs.

    It ends by itself, also where the address does not take the copy.
    """
    told_at, since = 0.0, time.monotonic()
    while is_locked(mirror_lock(paths)) and not resumed():
        state, now = read_mirror(paths), time.monotonic()
        if state is not None and state.told_at != told_at:
            told_at, since = state.told_at, now
        if now - since > _HANGS_SECONDS:
            return False
        time.sleep(_LOOK_SECONDS)
    return True
