"""How far a tracker has been fed: a small file in the run directory, replaced atomically."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, cast

from workbench.store.files import read_json, write_json_atomic

_SCHEMA = 1


@dataclass(slots=True, kw_only=True)
class Progress:
    """What has been fed so far. A point that is not in here is fed (again) at the next start."""

    tracker: str
    """Its name."""
    folder: str
    """Where it writes."""
    step: int = 0
    """Optimizer steps fed."""
    attempt: int = 1
    """Latest start of the launcher that was taken into account."""
    rewinds: int = 0
    """How many returns of the script to an earlier step were taken into account."""
    samples: int = 0
    """Lines of system.jsonl fed."""
    said: dict[str, int] = field(default_factory=dict[str, int])
    """Lines of each rank's ``workbench.log`` file fed, by rank (as text)."""
    notes: list[str] = field(default_factory=list[str])
    """Keys of the notes fed, in their order."""
    ended_at: float | None = None
    """When the run ended, once its end was fed."""

    def document(self) -> dict[str, Any]:
        """Plain JSON form."""
        return {"schema": _SCHEMA, **asdict(self)}

    def save(self, path: Path) -> None:
        """Write it; raises OSError."""
        write_json_atomic(path, self.document())

    def forget(self) -> None:
        """Begin again: nothing has been fed."""
        begun = Progress(tracker=self.tracker, folder=self.folder, attempt=self.attempt)
        begun.rewinds = self.rewinds
        self.go_back_to(begun)

    def go_back_to(self, other: Progress) -> None:
        """Become what `other` is."""
        for own in fields(self):
            setattr(self, own.name, getattr(other, own.name))


_CHECKS: dict[str, Callable[[Any], bool]] = {
    "step": lambda value: type(value) is int and value >= 0,
    "attempt": lambda value: type(value) is int and value >= 1,
    "rewinds": lambda value: type(value) is int and value >= 0,
    "samples": lambda value: type(value) is int and value >= 0,
    "said": lambda value: (
        isinstance(value, dict)
        and all(type(item) is int for item in cast("dict[Any, Any]", value).values())
    ),
    "notes": lambda value: (
        isinstance(value, list) and all(isinstance(item, str) for item in cast("list[Any]", value))
    ),
    "ended_at": lambda value: value is None or isinstance(value, float | int),
}


def load(path: Path, tracker: str, folder: Path) -> Progress:
    """What was fed to that folder; a fresh one where the file is absent, broken or another's."""
    fresh = Progress(tracker=tracker, folder=str(folder))
    document = read_json(path)
    if (
        document is None
        or document.get("folder") != str(folder)
        or document.get("schema") != _SCHEMA
    ):
        return fresh
    document.setdefault("rewinds", 0)  # of an earlier version
    with contextlib.suppress(KeyError):
        if all(passes(document[name]) for name, passes in _CHECKS.items()):
            for name in _CHECKS:
                setattr(fresh, name, document[name])
    return fresh
