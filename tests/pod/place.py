"""Puts the simulated driver in place: for this process, and for those that it starts."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.pod.timeline import AMD_PROFILES, Pod
from workbench.describe import detection

SOURCE = Path(__file__).with_name("nvml.c")
NAME = "libnvidia-ml.so.1"
AMD = SOURCE.with_name("amd")
"""Folder of the module that stands in for AMD's library."""


def library() -> Path:
    """The library, built where it is not yet; one folder for each text of it."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler (cc): the simulated driver cannot be built")
    mark = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"workbench-pod-{os.getuid()}-{mark}"
    folder.mkdir(mode=0o700, exist_ok=True)
    built = folder / NAME
    if not built.exists():
        new = folder / f"{NAME}.{os.getpid()}"
        options = ("-O1", "-shared", "-fPIC", f"-Wl,-soname,{NAME}", "-Wall", "-Wextra", "-Werror")
        subprocess.run([compiler, *options, "-o", new, SOURCE, "-lpthread"], check=True)
        new.replace(built)  # another test process may build it, too
    return built


class Placed:
    """A pod in place. `second` is its clock."""

    def __init__(self, pod: Pod, folder: Path) -> None:
        self.pod, self._folder = pod, folder
        folder.mkdir(exist_ok=True)
        self.timeline = pod.write(folder / "timeline")
        self._clock, self._calls = folder / "clock", folder / "calls"
        self.second = 0.0

    @property
    def second(self) -> float:
        """Seconds since the start of the timeline; it stands still until it is set."""
        return float(self._clock.read_text("ascii"))

    @second.setter
    def second(self, value: float) -> None:
        new = self._clock.with_suffix(".new")
        new.write_text(str(value), "ascii")
        new.replace(self._clock)

    @property
    def environment(self) -> Mapping[str, str]:
        """What a process needs to see the pod."""
        before = os.environ.get("LD_LIBRARY_PATH")
        own = str(library().parent)
        return {
            "LD_LIBRARY_PATH": own if not before else f"{own}:{before}",
            "POD_TIMELINE": str(self.timeline),
            "POD_CLOCK": str(self._clock),
            "POD_CALLS": str(self._calls),
            **self._of_amd(),
        }

    def _of_amd(self) -> dict[str, str]:
        if self.pod.gpu.id not in AMD_PROFILES:
            return {}
        before = os.environ.get("PYTHONPATH")
        own = str(AMD)
        return {"PYTHONPATH": own if not before else f"{own}:{before}"}

    @property
    def calls(self) -> list[str]:
        """Functions that were called so far, in order."""
        return self._calls.read_text("ascii").split() if self._calls.exists() else []


def forget() -> None:
    """Have this process look for a driver again."""
    detection.forget_driver()


def place(pod: Pod, folder: Path, patch: pytest.MonkeyPatch) -> Placed:
    """The pod, in place for this process until `patch` is undone and `forget` was called."""
    placed = Placed(pod, folder)
    for name, value in placed.environment.items():
        patch.setenv(name, value)
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        patch.delenv(name, raising=False)
    if pod.gpu.id in AMD_PROFILES:
        patch.syspath_prepend(str(AMD))
    # The loader has read LD_LIBRARY_PATH already; it knows a loaded library by its own name.
    ctypes.CDLL(str(library()), mode=ctypes.RTLD_GLOBAL)
    forget()
    return placed
