"""Finds what a kill, a move or a removed Python left behind, and clears it away."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Collection
from pathlib import Path

from venv_setup import state as states
from venv_setup.errors import SetupError

MARK = "WORKBENCH_SETUP_OF"
"""Set in the environment of everything the set-up starts; its value is the environment's path."""

_ASK = (
    "import importlib.util, json, sys; spec = importlib.util.find_spec('pip'); "
    "print(json.dumps([f'{sys.version_info[0]}.{sys.version_info[1]} {sys.base_prefix}', "
    "sys.prefix, spec.origin if spec else '']))"
)


def python_of(venv: Path) -> Path:
    """The environment's Python, existing or not."""
    return venv / "bin" / "python"


def fault(venv: Path, python: str, state: states.State | None) -> str | None:
    """Why this environment must be made again; None when it is sound.

    Args:
        venv: the directory of the environment.
        python: "3.12 /usr": version and base prefix of the Python it must have been made by.
        state: its record, if there is one.

    Raises:
        SetupError: the directory is something else than a virtual environment.
    """
    if not venv.exists() or not any(venv.iterdir()):
        return "there is none yet"
    if state is None and not (venv / "pyvenv.cfg").exists():
        raise SetupError(
            f"{venv} exists and is not a virtual environment (it has no pyvenv.cfg).",
            "Move it away, or give another place: --venv DIR. Nothing in it was touched.",
        )
    if state is not None and "venv" in state.unfinished():
        return "the set-up was interrupted while making it"
    if state is not None and state.venv != str(venv):
        return f"it was moved here from {state.venv}"
    return _fault_of_python(venv, python) or _fault_of_scripts(venv)


def _fault_of_python(venv: Path, python: str) -> str | None:
    try:
        argv = [str(python_of(venv)), "-I", "-c", _ASK]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
        made_by, prefix, pip = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        return f"its Python does not start ({type(error).__name__})"
    if Path(prefix).resolve() != venv.resolve():
        return f"its Python believes to be in {prefix}"
    if made_by != python:
        return f"it was made by Python {made_by}, now it is {python}"
    if not Path(pip or "/").resolve().is_relative_to(venv.resolve()):
        return "it has no pip"
    return None


def _fault_of_scripts(venv: Path) -> str | None:
    """A copied environment runs, but its commands start the Python of the place it came from."""
    script = venv / "bin" / "pip"
    try:
        with script.open("rb") as file:
            first = file.readline().decode(errors="replace").strip()
    except OSError:
        return None
    if re.search(r"^#!/.*/python[\d.]*$", first) and not first.startswith(f"#!{venv}/"):
        return f"its commands start {first.removeprefix('#!')}"
    return None


def sees_system_packages(venv: Path) -> bool:
    """Whether it was made with --system-site-packages."""
    try:
        lines = (venv / "pyvenv.cfg").read_text("utf-8").lower().splitlines()
    except OSError:
        return False
    return any(
        key.strip() == "include-system-site-packages" and value.strip() == "true"
        for key, _, value in (line.partition("=") for line in lines)
    )


def empty(directory: Path, *, keep: Collection[str]) -> None:
    """Deletes what is in it and keeps the directory, which may be a link to a larger disk."""
    for entry in directory.iterdir():
        if entry.name in keep:
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def end_leftovers(venv: Path) -> list[int]:
    """Kills what an earlier, killed set-up of this environment started; returns the process ids.

    `kill -9` of the script leaves its pip running, which would continue writing into the directory.
    Called under the lock, so no living set-up owns these processes. Without /proc it does nothing.
    """
    marked = f"{MARK}={venv}".encode()
    ended = []
    for entry in Path("/proc").glob("[0-9]*"):
        pid = int(entry.name)
        try:
            if pid == os.getpid() or marked not in (entry / "environ").read_bytes().split(b"\0"):
                continue
            os.kill(pid, signal.SIGKILL)
        except OSError:
            continue  # gone, or another user's
        ended.append(pid)
    deadline = time.monotonic() + 5
    while any(_is_alive(pid) for pid in ended) and time.monotonic() < deadline:
        time.sleep(0.02)
    return ended


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
