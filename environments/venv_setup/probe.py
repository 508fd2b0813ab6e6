"""What this machine has: the system's torch, an NVIDIA driver, what an environment's torch is."""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from venv_setup.choice import INDEX_VARIABLE, Machine, SystemTorch
from venv_setup.errors import SetupError

# A full import, in a child: a torch whose libraries do not load must not be chosen, and importing
# it here would cost this process its seconds and its memory.
_IMPORT_TORCH = """
import importlib.metadata, json
found = {"version": importlib.metadata.version("torch")}
try:
    import torch
    found["file"] = torch.__file__
    found["cuda"] = torch.version.cuda
    found["hip"] = getattr(torch.version, "hip", None)
except Exception as error:
    found["error"] = (type(error).__name__ + ": " + str(error)).splitlines()[0][:160]
print("FOUND " + json.dumps(found))
"""

# No import: which file would be imported, and which version the metadata names.
_LOCATE_TORCH = """
import importlib.metadata, importlib.util, json
spec = importlib.util.find_spec("torch")
try:
    version = importlib.metadata.version("torch")
except importlib.metadata.PackageNotFoundError:
    version = None
print("FOUND " + json.dumps({"version": version, "file": spec.origin if spec else None}))
"""


def quick_look() -> dict[str, str | None]:
    """What the choice depends on as far as milliseconds can tell; kept in the state file.

    As long as this does not change, the recorded choice still holds and nothing slower is asked.
    """
    spec = importlib.util.find_spec("torch")
    version = None
    if spec is not None:
        try:
            version = importlib.metadata.version("torch")
        except importlib.metadata.PackageNotFoundError:
            version = "unknown"
    return {
        "system_torch": version,
        "system_torch_file": spec.origin if spec else None,
        "driver": nvidia_driver(),
        "index": os.environ.get(INDEX_VARIABLE) or None,
    }


def look(python: str) -> Machine:
    """Everything the choice depends on; imports the system's torch, if any, in a child."""
    quick = quick_look()
    return Machine(
        system_torch=system_torch(python) if quick["system_torch"] else None,
        driver=quick["driver"],
        index=quick["index"],
    )


def nvidia_driver() -> str | None:
    """Where an NVIDIA driver shows itself, else None. A GPU need not be visible."""
    if Path("/proc/driver/nvidia/version").exists():
        return "/proc/driver/nvidia"
    tool = shutil.which("nvidia-smi")
    if tool:
        return tool
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    return "libcuda.so.1"


def system_torch(python: str) -> SystemTorch | None:
    """The torch of that Python, imported in a child; None where it has none."""
    torch = _ask(python, _IMPORT_TORCH, timeout=180)
    if torch is None:
        return None
    built_for = None
    if torch.get("cuda"):
        built_for = f"CUDA {torch['cuda']}"
    elif torch.get("hip"):
        built_for = f"ROCm {torch['hip']}"
    return SystemTorch(
        version=torch["version"],
        file=torch.get("file") or "",
        accelerator=built_for,
        error=torch.get("error"),
    )


def locate_torch(python: str) -> tuple[str | None, str | None]:
    """(version, file) of the torch that Python would import, without importing it."""
    torch = _ask(python, _LOCATE_TORCH, timeout=60) or {}
    return torch.get("version"), torch.get("file")


def _ask(python: str, program: str, *, timeout: float) -> dict[str, Any] | None:
    argv = [python, "-c", program]
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=timeout, check=False, cwd="/"
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SetupError(
            f"{python} was asked for its torch and did not answer: {error}.",
            "Check that this Python starts, or name another: make PYTHON=/path/to/python3 …",
        ) from error
    for line in done.stdout.splitlines():
        if line.startswith("FOUND "):
            return json.loads(line.removeprefix("FOUND "))
    return None
