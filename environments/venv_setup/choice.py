"""Which torch the environment gets: every version and every rule of the choice, in one place.

A system torch built for a GPU is used in place and never replaced: on a rented pod or in a CUDA
image it is the build that fits the driver, and a second one is gigabytes and minutes. Elsewhere
exactly one version is asked for, by exact number: a range such as `torch>=2.7` may pick another
build (with pip, the newest number wins over the CPU build of an older one).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from venv_setup.errors import SetupError

TORCH_VERSION = "2.13.0"
"""The version installed where the system has none. One number for every machine."""

TORCH_EXTRA = "train"
"""The extra of pyproject.toml that brings torch; without it none is installed."""

DEFAULT_EXTRAS = ("train", "lab", "deepspeed", "sweep")
"""What `make demo`, `make lab`, the image and the pods get, so what the notebooks may need."""

INDEX_VARIABLE = "WORKBENCH_TORCH_INDEX"
"""Environment variable naming another package index for torch alone; never required."""

MODES = ("auto", "system", "own")
"""--torch: auto applies the rule above; system and own force one side of it."""

Kind = Literal["system", "own", "none"]


@dataclass(frozen=True)
class SystemTorch:
    """The torch that the system's Python has."""

    version: str
    """As its metadata says, local part included, e.g. 2.11.0+cu130."""
    file: str
    """Its __init__.py: the environment's torch must be this very file afterwards."""
    accelerator: str | None = None
    """What it was built for, "CUDA 13.0" or "ROCm 6.4"; None: CPU. No GPU need be visible."""
    error: str | None = None
    """Why it could not be imported, else None."""


@dataclass(frozen=True)
class Machine:
    """What the choice depends on; filled in by probe.py, or by hand in the tests."""

    system_torch: SystemTorch | None = None
    """None: the system's Python has no torch."""
    driver: str | None = None
    """Where an NVIDIA driver was seen (a path); None: nowhere."""
    index: str | None = None
    """The value of WORKBENCH_TORCH_INDEX, if set and not empty."""


@dataclass(frozen=True)
class TorchChoice:
    """What was chosen, and the one line that says why."""

    kind: Kind
    """system: used in place; own: installed into the environment; none: not asked for."""
    reason: str
    """For a person, one line."""
    requirement: str | None = None
    """What pip is asked to install; None unless kind is own."""
    version: str | None = None
    """The exact version that must stay; None unless kind is system."""
    file: str | None = None
    """The file that must stay the environment's torch; None unless kind is system."""

    def line(self) -> str:
        """The choice in one line."""
        what = {
            "system": f"the system's own {self.version}",
            "own": str(self.requirement),
            "none": "none",
        }[self.kind]
        return f"torch: {what} ({self.reason})"


def decide(machine: Machine, *, mode: str, wants_torch: bool) -> TorchChoice:
    """Applies the rule.

    Raises:
        SetupError: an unknown mode, or the system's torch is forced where there is none.
    """
    if mode not in MODES:
        raise SetupError(
            f"--torch {mode}: not one of {', '.join(MODES)}.", "Leave it out for auto."
        )
    system = machine.system_torch
    if mode == "system":
        return _forced_system(system)
    if mode == "auto" and system and system.accelerator and not system.error:
        reason = f"built for {system.accelerator}; used in place, never replaced"
        return TorchChoice(kind="system", reason=reason, version=system.version, file=system.file)
    if not wants_torch:
        return TorchChoice(kind="none", reason=f"the extra {TORCH_EXTRA!r} was not asked for")
    return TorchChoice(
        kind="own",
        requirement=f"torch=={TORCH_VERSION}",
        reason="; ".join(_own_reasons(machine, mode)),
    )


def _forced_system(system: SystemTorch | None) -> TorchChoice:
    if system is None or system.error:
        reason = (
            f"it has {system.version}, which fails: {system.error}" if system else "it has none"
        )
        raise SetupError(
            f"--torch system: the system's Python must have a working torch, but {reason}.",
            "Use --torch auto, or name the Python that has it: make PYTHON=/path/to/python3 …",
        )
    return TorchChoice(
        kind="system",
        reason="asked for by --torch system",
        version=system.version,
        file=system.file,
    )


def _own_reasons(machine: Machine, mode: str) -> list[str]:
    reasons = []
    system = machine.system_torch
    if mode == "own":
        reasons.append("asked for by --torch own")
    elif system and system.error:
        reasons.append(f"the system's {system.version} cannot be imported: {system.error}")
    elif system:
        reasons.append(f"the system's {system.version} is a CPU build")
    if machine.driver:
        reasons.append(f"NVIDIA driver found at {machine.driver}")
    else:
        reasons.append("no NVIDIA driver found, the CPU build where the index has one")
    if machine.index:
        reasons.append(f"from the index named by {INDEX_VARIABLE}")
    return reasons
