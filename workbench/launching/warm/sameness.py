"""Whether a fork of the warm server would be the same as a cold start. Standard library only.

Every check answers with a sentence that says why not, or None. What cannot be the same is started
cold, so nothing here tries to repair a difference.
"""

from __future__ import annotations

import functools
import os
import resource
import sys
import threading
import types
from collections.abc import Collection, Iterable, KeysView, Mapping
from typing import Any

# Read by C libraries while they are loaded, or by the interpreter's start.
_STARTUP = (
    *("PYTHON", "LD_", "OMP_", "GOMP_", "MKL_", "OPENBLAS_", "GOTO_", "MALLOC_", "GLIBC_", "LC_"),
    *("PYTORCH_", "ATEN_", "DNNL_", "ONEDNN_", "TORCH_CPP_", "TORCH_SHOW_", "TQDM_", "COVERAGE_"),
)
_INTEL = ("KMP_",)  # read by Intel's OpenMP alone, which most builds of torch lack
# A fork takes these over as a cold start would. PYTEST_CURRENT_TEST names the test that runs;
# libraries ask only whether it is there. DeepSpeed sets PYTORCH_NVML_BASED_CUDA_CHECK in the
# launcher, for its ranks; torch reads it each time that it looks for a GPU.
_ADOPTED = frozenset(
    {
        *("PYTHONPATH", "PYTHONUNBUFFERED", "COLUMNS", "LINES", "PYTEST_CURRENT_TEST"),
        "PYTORCH_NVML_BASED_CUDA_CHECK",
    }
)
_SETTINGS = ("HF_", "TRANSFORMERS_", "TORCH", "XDG_")
DEEPSPEED_DEVICE = "DS_ACCELERATOR"  # read when DeepSpeed is imported
_NAMES_OF_SETTINGS = {"HOME", "PYTHONPATH", DEEPSPEED_DEVICE}
_NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")
THREADS = "OMP_NUM_THREADS"


def is_startup(name: str) -> bool:
    """Whether a process reads the variable before a script could set it."""
    if name in _ADOPTED:
        return False
    return name == "LANG" or name.startswith((*_STARTUP, *(_INTEL if _has_intel() else ())))


def settings(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that decide which warm server fits."""
    return {
        name: value
        for name, value in sorted(environment.items())
        if is_startup(name) or name.startswith(_SETTINGS) or name in _NAMES_OF_SETTINGS
    }


@functools.cache  # libraries that are loaded later do not read the variables of a start
def _has_intel() -> bool:
    return any("libiomp" in name or "libomp." in name for name in mapped_libraries())


def mapped_libraries() -> frozenset[str]:
    """The shared libraries that this process has loaded by now."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
        return frozenset(line.split()[-1] for line in file if ".so" in line)


class Reads(os._Environ[str]):  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    """``os.environ`` that notes which variables are asked for by name."""

    names: set[str] = set()  # noqa: RUF012  (of the process, as os.environ is)
    listed: list[str] = []  # noqa: RUF012
    """What `keys` has given and no one has looked up, the next one last."""

    def __getitem__(self, key: str) -> str:
        caller = sys._getframe(1).f_code  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        listing = caller.co_name == "__iter__" and "_collections_abc" in caller.co_filename
        if Reads.listed[-1:] == [key]:  # dict(os.environ) looks up each in turn
            Reads.listed.pop()
            listing = True
        else:
            Reads.listed.clear()
        if not listing:
            Reads.names.add(os.fsdecode(key))  # subprocess looks up b"PATH"
        return super().__getitem__(key)

    def keys(self) -> KeysView[str]:
        """All names; a value that is looked up for each in turn is not asked for by name."""
        Reads.listed = list(self)[::-1]
        return super().keys()

    def copy(self) -> dict[str, str]:
        """All of them: no one asks for one by name."""
        return dict(self.items())

    @staticmethod
    def begin() -> None:
        """Note what is read from now on."""
        os.environ.__class__ = Reads

    @staticmethod
    def end() -> frozenset[str]:
        """What was read since `begin`."""
        os.environ.__class__ = os._Environ  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        return frozenset(Reads.names)


def other_variable(
    environment: Mapping[str, str],
    own: Mapping[str, str],
    read: Collection[str],
    *,
    ignored: Collection[str] = (),
) -> str | None:
    """A variable of `environment` that the server has taken in with another value."""
    for name in sorted({*environment, *own}):
        if name in ignored or environment.get(name) == own.get(name):
            continue
        if is_startup(name) or (name in read and name not in _ADOPTED):
            here, there = environment.get(name), own.get(name)
            return (
                f"{name} is {_quoted(here)} here, and was {_quoted(there)} when the warm server "
                "imported its libraries"
            )
    return None


def added(environment: Mapping[str, str], before: Mapping[str, str]) -> dict[str, str]:
    """The variables that imports have set: a fork has the modules, and so it needs these, too."""
    return {name: value for name, value in environment.items() if name not in before}


def threads_left() -> str | None:
    """A thread that an import has started: a fork would lack it."""
    thread_names = [thread.name for thread in threading.enumerate()[1:]]
    return (
        f"an import has started the thread {thread_names[0]} in the warm server"
        if thread_names
        else None
    )


def _quoted(value: str | None) -> str:
    return "not set" if value is None else repr(value)


def surroundings() -> dict[str, str]:
    """What a process inherits beside environment and files; a fork cannot change it."""
    inherited = {f"{name} namespace": os.readlink(f"/proc/self/ns/{name}") for name in _NAMESPACES}
    with open("/proc/self/cgroup", encoding="utf-8") as file:
        inherited["control group"] = file.read().strip()
    with open("/proc/self/status", encoding="utf-8") as file:
        status = dict(line.split(":", 1) for line in file)
    for name in ("Groups", "CapEff", "NoNewPrivs", "Seccomp", "Cpus_allowed_list"):
        inherited[name] = status.get(name, "").strip()
    inherited["nice level"] = str(os.getpriority(os.PRIO_PROCESS, 0))
    for name in dir(resource):
        if name.startswith("RLIMIT_"):
            inherited[name] = str(resource.getrlimit(getattr(resource, name)))
    return inherited


def other_surroundings(theirs: Mapping[str, str], own: Mapping[str, str]) -> str | None:
    """What differs between the surroundings of the process that asks (`theirs`) and ours."""
    name = next((name for name in own if theirs.get(name) != own[name]), None)
    if name is None:
        return None
    return f"its {name} is {theirs.get(name)!r}, the warm server's {own[name]!r}"


def files_of_modules() -> dict[str, tuple[int, int]]:
    """Time and size of every file that a module was loaded from, and of the folders it lies in."""
    paths = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    folders = {path for path in sys.path if path.endswith("-packages")}
    return {path: _stamp(path) for path in {*paths, *folders} if path}


def changed_file(stamps: Mapping[str, tuple[int, int]]) -> str | None:
    """A file that is another one than when it was loaded."""
    path = next((path for path, stamp in stamps.items() if _stamp(path) != stamp), None)
    if path is None:
        return None
    return f"{path} has changed since the warm server imported it"


def _stamp(path: str) -> tuple[int, int]:
    try:
        status = os.stat(path)
    except OSError:
        return (0, 0)
    return (status.st_mtime_ns, 0 if path.endswith("-packages") else status.st_size)


def cuda_in_use(modules: Mapping[str, Any]) -> str | None:
    """Whether CUDA was initialised: a fork cannot use it then."""
    torch = modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return "CUDA was initialised in the warm server"
    return None


def shadowed(folders: Iterable[str], modules: Mapping[str, types.ModuleType]) -> str | None:
    """A module that a cold start would find in `folders` before the one that is loaded."""
    for folder in folders:
        try:
            entries = list(os.scandir(folder or "."))
        except OSError:
            continue
        for entry in entries:
            name, _, ending = entry.name.partition(".")
            if name not in modules or name in {"sitecustomize", "usercustomize", "__main__"}:
                continue
            if not ending and not os.path.exists(os.path.join(entry.path, "__init__.py")):
                continue
            if ending and not ending.endswith(("py", "so", "pyc")):
                continue
            loaded = getattr(modules[name], "__file__", None)
            if loaded is None or not os.path.realpath(loaded).startswith(
                os.path.realpath(entry.path)
            ):
                return f"{entry.path} would be imported as {name} by a cold start"
    return None
