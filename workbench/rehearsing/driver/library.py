"""Builds the simulated NVML with the system's C compiler, once per text of it."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workbench.errors import HostError

SOURCE = Path(__file__).with_name("nvml.c")
NAME = "libnvidia-ml.so.1"
_MARK = "workbench_simulated_pod"  # a symbol that only it has
_OPTIONS = ("-O1", "-shared", "-fPIC", f"-Wl,-soname,{NAME}", "-Wall", "-Wextra", "-Werror")


def compiler() -> str | None:
    """The system's C compiler; None where there is none."""
    return shutil.which("cc")


def library() -> Path:
    """The library, built where it is not yet; its folder is this user's alone.

    Raises:
        HostError: there is no C compiler, it failed, or the folder is another user's.
    """
    compiler_path = compiler()
    if compiler_path is None:
        raise HostError(
            "The simulated GPU driver is built from C, and there is no C compiler (cc). Install "
            "one: apt-get install gcc libc6-dev"
        )
    mark = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"workbench-pod-{os.getuid()}-{mark}"
    folder.mkdir(mode=0o700, exist_ok=True)
    about = folder.lstat()
    if folder.is_symlink() or about.st_uid != os.getuid() or about.st_mode & 0o022:
        raise HostError(f"{folder} is not this user's alone. Remove it, or set TMPDIR.")
    built = folder / NAME
    if not built.exists():
        new = folder / f"{NAME}.{os.getpid()}"
        made = subprocess.run(
            [compiler_path, *_OPTIONS, "-o", new, SOURCE, "-lpthread"],
            check=False,
            capture_output=True,
            text=True,
        )
        if made.returncode:
            raise HostError(f"cc could not build the simulated GPU driver:\n{made.stderr[-2000:]}")
        new.replace(built)  # another process may build it, too
    return built


def environment(timeline: Path, clock: Path | None = None) -> Mapping[str, str]:
    """What a process needs to see the GPUs of `timeline` instead of the host's.

    Raises:
        HostError: see `library`.
    """
    before, own = os.environ.get("LD_LIBRARY_PATH"), str(library().parent)
    clocked = {} if clock is None else {"POD_CLOCK": str(clock)}
    return {
        "LD_LIBRARY_PATH": own if not before else f"{own}:{before}",
        "POD_TIMELINE": str(timeline),
        **clocked,
    }


def take_place() -> None:
    """Load it under the driver's name; the loader knows a loaded library by its own name.

    Raises:
        HostError: see `library`.
    """
    ctypes.CDLL(str(library()), mode=ctypes.RTLD_GLOBAL)


def is_simulated(nvml: Any) -> bool:
    """Whether nvidia-ml-py, as `detection.nvml` gives it, speaks to the simulated driver."""
    loaded = getattr(nvml, "nvmlLib", None)
    try:
        return loaded is not None and bool(ctypes.c_int.in_dll(loaded, _MARK).value)
    except (ValueError, TypeError):
        return False
