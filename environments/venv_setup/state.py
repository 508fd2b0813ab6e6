"""What was done so far: `.venv/.setup-state.json`, replaced atomically, and the lock beside it."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

FILE_NAME = ".setup-state.json"
LOG_NAME = "setup.log"
FORMAT = 1


@dataclass
class State:
    """The record of one environment. A stage that has no seconds was started and not finished."""

    venv: str = ""
    """Absolute path at the time: a moved or copied environment is recognised by it."""
    python: str = ""
    """Version and base prefix of the Python that made it."""
    machine: dict[str, str | None] = field(default_factory=dict)
    """probe.quick_look() at the time of the choice."""
    mode: str = "auto"
    """--torch."""
    torch: dict[str, str | None] = field(default_factory=dict)
    """The choice (choice.TorchChoice) and the version really installed."""
    extras: list[str] = field(default_factory=list)
    """Extras installed."""
    missing: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Optional extra -> when its installation failed (seconds since 1970) and why."""
    inputs: dict[str, str] = field(default_factory=dict)
    """Name -> sha256 of what the installation was made from."""
    stages: dict[str, dict[str, float | None]] = field(default_factory=dict)
    """Stage -> when it started, how long it took (None: unfinished)."""
    complete: bool = False
    """Everything finished and verified."""
    format: int = FORMAT
    """Of this file; another number is read as "no state"."""

    def unfinished(self) -> list[str]:
        """Stages that were started and not finished: the set-up was killed in them."""
        return [name for name, stage in self.stages.items() if stage.get("seconds") is None]


def load(venv: Path) -> State | None:
    """The state of that environment; None where there is none or it cannot be read."""
    try:
        document: Any = json.loads((venv / FILE_NAME).read_text("utf-8"))
        state = State(**document)
    except (OSError, ValueError, TypeError):
        return None
    return state if state.format == FORMAT else None


def save(venv: Path, state: State) -> None:
    """Replaces the file in one step: a kill leaves the old one or the new one, never a half."""
    venv.mkdir(parents=True, exist_ok=True)
    temporary = venv / f"{FILE_NAME}.{os.getpid()}"
    with temporary.open("w", encoding="utf-8") as file:
        json.dump(asdict(state), file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(venv / FILE_NAME)


@contextlib.contextmanager
def stage(venv: Path, state: State, name: str) -> Iterator[None]:
    """Records the stage as begun, and as finished only when the body returned."""
    began = time.time()
    state.complete = False
    state.stages[name] = {"started": began, "seconds": None}
    save(venv, state)
    yield
    state.stages[name] = {"started": began, "seconds": round(time.time() - began, 2)}
    save(venv, state)


def digests(project: Path, scripts: Path) -> dict[str, str]:
    """Name -> sha256 of what an installation is made from: pyproject.toml and these scripts."""
    program = hashlib.sha256()
    for path in sorted(scripts.rglob("*.py")):
        program.update(path.read_bytes())
    pyproject = project / "pyproject.toml"
    return {
        "pyproject.toml": hashlib.sha256(pyproject.read_bytes()).hexdigest(),
        "the set-up script": program.hexdigest(),
    }


@contextlib.contextmanager
def lock(project: Path, waiting: Any) -> Iterator[None]:
    """One set-up at a time per project; `waiting` is called once if another one holds the lock.

    The lock is on the project's directory itself: no file stays, and it dies with its holder.
    """
    handle = os.open(project, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(handle, fcntl.LOCK_EX)
        except OSError:
            pass  # some network volumes cannot lock a directory; then the user must not run two
        yield
    finally:
        os.close(handle)
