"""`Sink`: the one interface behind which each tracker stands."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

from workbench.observe.trackers.points import About, Note, Point
from workbench.observe.trackers.progress import Progress


class Sink(ABC):
    """A tracker that is open for one run. Any call may raise; the feeder then opens a new one.

    What is taken must have reached the disk when `flush` returns. What came after the latest
    `flush` may be fed again to the next sink, which must not show it twice.
    """

    def __init__(self, folder: Path, about: About) -> None:
        self.folder = folder
        self.about = about

    @abstractmethod
    def open(self, progress: Progress) -> bool:
        """Go on after what `progress` says was fed; False when that is not there (any more)."""

    @abstractmethod
    def clear(self) -> None:
        """Begin the run again: what was fed before is gone, all of it comes again."""

    @abstractmethod
    def points(self, points: Sequence[Point]) -> None:
        """Take points, in the order of their axis."""

    @abstractmethod
    def notes(self, notes: Sequence[Note], first: int) -> None:
        """Take notes; the first one is the run's note number `first`, counted from 1."""

    @abstractmethod
    def end(self, outcome: str, ended_at: float) -> None:
        """The run ended (it may continue later, after a resume)."""

    @abstractmethod
    def look(self) -> str:
        """The command line that shows the tracker, on loopback."""

    def take_back(self, step: int) -> bool:  # noqa: ARG002
        """Forget the steps beyond `step`; False = cannot, so `clear` and feed everything again."""
        return False

    @abstractmethod
    def flush(self) -> None:
        """Return once everything taken is on the disk."""

    @abstractmethod
    def close(self) -> None:
        """Let go of files and processes; what was flushed stays."""
