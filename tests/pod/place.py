"""Puts the simulated driver in place: for this process, and for those that it starts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from workbench.describe import detection
from workbench.rehearsing.driver import library as driver
from workbench.rehearsing.driver.pod import AMD_PROFILES, Pod

AMD = Path(__file__).with_name("amd")
"""Folder of the module that stands in for AMD's library."""


def library() -> Path:
    """The library; without a compiler the test is skipped."""
    if driver.compiler() is None:
        pytest.skip("no C compiler (cc): the simulated driver cannot be built")
    return driver.library()


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
        known = driver.environment(self.timeline, self._clock)
        return {**known, "POD_CALLS": str(self._calls), **self._of_amd()}

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
    library()
    driver.take_place()
    forget()
    return placed
