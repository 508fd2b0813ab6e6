"""What this host has, what is wrong with it, and the fix for each."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from workbench.describe import detection
from workbench.describe.amd import VENDOR as AMD
from workbench.describe.bounded_calls import DRIVER, driver_silence
from workbench.describe.child_python import import_path
from workbench.describe.detection import detect_host, nvml, silent_gpus, vendor, visible_gpus
from workbench.describe.hardware import Gpu
from workbench.describe.torch_build import cuda_version, torch_that_fits
from workbench.errors import UsageError, pip_install
from workbench.observe.host import disk_free
from workbench.store.processes import SAFE_PYTHON
from workbench.store.runs import Store
from workbench.units import GIB, format_bytes, format_usd

_SHM = "/dev/shm"  # noqa: S108  (where the kernel keeps POSIX shared memory)
_MIN_SHM_BYTES = GIB
_MIN_DISK_BYTES = 5 * GIB
_TORCH_SECONDS, _NO_DRIVER_SECONDS = 120.0, 20.0  # to import torch; where the driver hangs
_PROBE = """
import json, torch
nccl = None
try:
    on_gpu = torch.version.cuda or torch.version.hip
    nccl = ".".join(map(str, torch.cuda.nccl.version())) if on_gpu else None
except Exception:
    pass
print(json.dumps({"torch": torch.__version__, "cuda": torch.version.cuda, "hip": torch.version.hip,
    "nccl": nccl,
    "available": torch.cuda.is_available(), "gpus": torch.cuda.device_count(),
    "gloo": torch.distributed.is_available() and torch.distributed.is_gloo_available(),
    "archs": torch.cuda.get_arch_list() if torch.version.cuda else []}))
"""

Check = dict[str, Any]


def doctor(store: str | os.PathLike[str] | None = None) -> dict[str, Any]:
    """Examine the host.

    Returns:
        ``{"ok", "checks": [{"name", "ok", "found", "fix"}]}``; `fix` is None where all is well.
    """
    probe = _probe_torch()
    hangs = None if probe is None else probe.get("silent_seconds")
    torch = None if hangs else probe
    checks = [
        _check_python(),
        _check_name_clash(),
        _check_torch(torch) if hangs is None else _hanging_torch(hangs),
        _check_accelerate(),
        _check_gpus(torch),
        _check_links(),
        _check_nccl(torch),
        _check_cores(),
        _check_price(),
        _check_shm(),
        _check_port(),
        _check_store(Store(store)),
        _check_disk(Store(store)),
        _check_jupyter(),
    ]
    return {"ok": all(check["ok"] for check in checks), "checks": checks}


def _check(name: str, ok: bool, observed: str, fix: str | None = None) -> Check:  # noqa: FBT001
    return {"name": name, "ok": ok, "found": observed, "fix": None if ok else fix}


def _probe_torch() -> dict[str, Any] | None:
    """Ask a child process, so that this one stays small and a broken CUDA cannot hang it."""
    visible_gpus()  # a driver that hangs is known then
    seconds = _NO_DRIVER_SECONDS if driver_silence() else _TORCH_SECONDS
    try:
        result = subprocess.run(
            [*SAFE_PYTHON, "-W", "ignore", "-c", _PROBE],
            env={**os.environ, "PYTHONPATH": import_path()},
            cwd="/",
            capture_output=True,
            text=True,
            timeout=seconds,
            check=True,
        )
        return json.loads(result.stdout.strip().splitlines()[-1])
    except subprocess.TimeoutExpired:
        return {"silent_seconds": seconds}
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None


def _check_python() -> Check:
    version = ".".join(map(str, sys.version_info[:3]))
    return _check("python", sys.version_info >= (3, 10), version, "Use Python 3.10 or newer.")


NAME_CLASH_FIX = (
    "pip uninstall -y workbench, then pip install --force-reinstall --no-deps training-workbench"
)


def name_clash() -> str | None:
    """Say so when the other project named workbench is installed: its files and ours would mix."""
    try:
        version = importlib.metadata.version("workbench")
    except importlib.metadata.PackageNotFoundError:
        return None
    return f"the PyPI project workbench {version} installs an import package of the same name"


def _check_name_clash() -> Check:
    clash = name_clash()
    observed = clash or "no other package named workbench"
    return _check("package name", clash is None, observed, NAME_CLASH_FIX)


def _check_torch(torch: dict[str, Any] | None) -> Check:
    if torch is None:
        return _check(
            "torch",
            ok=False,
            observed="cannot be imported",
            fix=f"make demo, or {pip_install('torch')}",
        )
    driver = nvml() is not None
    build = f"CUDA {torch['cuda']}" if torch["cuda"] else "CPU build"
    build = f"ROCm {torch['hip']}" if torch.get("hip") else build
    observed = f"{torch['torch']} ({build})"
    if vendor() == AMD:
        usable = bool(torch.get("hip")) and torch["available"]
        fix = torch_that_fits() if not torch.get("hip") else _NO_HIP
        return _check("torch", ok=usable, observed=observed, fix=fix)
    if driver and not torch["cuda"]:
        fix = f"This host has an NVIDIA driver, but this torch has no CUDA. {torch_that_fits()}"
        return _check("torch", ok=False, observed=observed, fix=fix)
    if driver and not torch["available"]:
        fix = (
            f"torch cannot use the GPU: the driver is too old for CUDA {torch['cuda']}, or "
            "CUDA_VISIBLE_DEVICES hides the GPUs. Install a torch built for the driver's CUDA."
        )
        return _check("torch", ok=False, observed=observed, fix=fix)
    strange = [
        capability
        for capability in _capabilities()
        if not _is_built_for(capability, torch["archs"])
    ]
    if driver and strange:
        major, minor = strange[0]
        fix = (
            f"This torch has no kernels for compute capability {major}.{minor}; the first kernel "
            "would fail with 'no kernel image': install a torch build that includes it."
        )
        return _check(
            "torch", ok=False, observed=f"{observed} for {' '.join(torch['archs'])}", fix=fix
        )
    return _check("torch", ok=True, observed=observed)


_NO_HIP = (
    "torch cannot use the GPU: the driver is too old for its ROCm, this user may not open /dev/kfd "
    "(join the groups render and video), or HIP_VISIBLE_DEVICES hides the GPUs."
)


def _hanging_torch(seconds: float) -> Check:
    fix = driver_silence() or "Import torch in a terminal, and see where it waits."
    return _check("torch", ok=False, observed=f"no answer within {seconds:g} s", fix=fix)


def _capabilities() -> list[tuple[int, int]]:
    """Compute capability of each visible GPU, as far as the driver tells."""
    gpus = visible_gpus()
    return DRIVER.ask(lambda: _ask_capabilities(gpus)) or []


def _ask_capabilities(gpus: Sequence[Gpu]) -> list[tuple[int, int]]:
    library, capabilities = nvml(), list[tuple[int, int]]()
    if library is None:
        return capabilities
    for gpu in gpus:
        with contextlib.suppress(library.NVMLError):
            handle = library.nvmlDeviceGetHandleByIndex(gpu.index)
            capabilities.append(library.nvmlDeviceGetCudaComputeCapability(handle))
    return capabilities


def _is_built_for(capability: tuple[int, int], archs: list[str]) -> bool:
    """Whether a build has kernels for a GPU: of its generation, or PTX that it can translate.

    >>> _is_built_for((8, 6), ["sm_80"]), _is_built_for((12, 0), ["sm_90", "compute_90"])
    (True, True)
    >>> _is_built_for((6, 1), ["sm_70", "sm_90a"]), _is_built_for((12, 0), ["sm_100"])
    (False, False)
    """
    major, minor = capability
    for arch in archs:
        kind, _, digits = arch.rstrip("af").partition("_")
        built = divmod(int(digits), 10)
        if built <= (major, minor) and (kind == "compute" or built[0] == major):
            return True
    return not archs


def _check_accelerate() -> Check:
    fix = pip_install("accelerate>=1.10,<2")
    try:
        version = importlib.metadata.version("accelerate")
    except importlib.metadata.PackageNotFoundError:
        return _check("accelerate", ok=False, observed="not installed", fix=fix)
    major, minor = (int(part) for part in version.split(".")[:2])
    return _check("accelerate", (1, 10) <= (major, minor) < (2, 0), version, fix)


def _check_gpus(torch: dict[str, Any] | None) -> Check:
    gpus, silent, library = visible_gpus(), silent_gpus(), nvml()
    driver = None if library is None else DRIVER.ask(lambda: _driver(library))
    if silence := driver_silence():
        return _check("GPUs", ok=False, observed="the driver does not answer", fix=silence)
    if library is None:
        has_card = os.path.exists("/dev/nvidia0")  # noqa: PTH110
        return _check(
            "GPUs",
            not has_card,
            "no NVIDIA driver; runs use CPU ranks (gloo)",
            "There is a GPU device, but NVML does not answer: reinstall or restart the driver.",
        )
    kinds = Counter(f"{gpu.name} {format_bytes(gpu.memory_bytes)}" for gpu in gpus)
    names = ", ".join(f"{count} x {kind}" for kind, count in kinds.items()) or "none visible"
    seen = torch["gpus"] if torch else 0
    return _check(
        "GPUs",
        bool(gpus) and seen == len(gpus) and not silent,
        f"{names}; {driver}",
        _gpu_fix(torch, seen, len(gpus), silent),
    )


def _driver(library: Any) -> str:
    """Its release and the newest CUDA that it can do, as far as it says so."""
    try:
        release = library.nvmlSystemGetDriverVersion()
        if vendor() == AMD:
            return f"amdgpu {release} (AMD support is not run on hardware)"
        return f"driver {release} (CUDA {cuda_version()})"
    except library.NVMLError as error:
        return f"a driver that does not tell its version ({error})"


def _gpu_fix(torch: Any, seen: int, gpus: int, silent: Mapping[int, str]) -> str:
    if silent:
        problems = "; ".join(f"GPU {index}: {text}" for index, text in silent.items())
        return (
            f"The driver does not describe every GPU ({problems}). Restart or replace the machine."
        )
    if not gpus and os.environ.get("CUDA_VISIBLE_DEVICES") is not None:
        return (
            f"CUDA_VISIBLE_DEVICES={os.environ['CUDA_VISIBLE_DEVICES']} names no GPU of this host: "
            "unset it, or name GPUs by number or UUID."
        )
    if not gpus:
        return "The driver counts no GPU: look at nvidia-smi, restart or replace the machine."
    if torch is None or not (torch["cuda"] or torch.get("hip")):
        return f"No rank could use the {gpus} GPUs: see the torch check."
    return f"torch sees {seen} of {gpus} GPUs: check CUDA_VISIBLE_DEVICES and the torch check."


def _check_links() -> Check:
    library, gpus = nvml(), visible_gpus()
    if library is None or len(gpus) < 2:
        return _check("links", ok=True, observed="fewer than two GPUs: no links to check")
    active = DRIVER.ask(lambda: _active_links(library, gpus[0].index))
    if active is None:
        return _check(
            "links", ok=False, observed="the driver does not answer", fix=driver_silence()
        )
    observed = (
        f"{active} NVLinks active on GPU {gpus[0].index}"
        if active
        else "PCIe only (no active NVLink seen)"
    )
    return _check("links", ok=True, observed=observed)


def _active_links(library: Any, index: int) -> int:
    active = 0
    with contextlib.suppress(library.NVMLError):  # the last link, or a card without any
        handle = library.nvmlDeviceGetHandleByIndex(index)
        for link in range(library.NVML_NVLINK_MAX_LINKS):
            active += library.nvmlDeviceGetNvLinkState(handle, link)
    return active


def _check_nccl(torch: dict[str, Any] | None) -> Check:
    if torch is None or (not torch["cuda"] and not torch.get("hip") and torch["gloo"]):
        return _check("collectives", torch is not None, "gloo (CPU)", "Install torch first.")
    library = "RCCL" if torch.get("hip") else "NCCL"
    return _check(
        "collectives",
        bool(torch["nccl"]),
        f"{library} {torch['nccl'] or 'missing'}, gloo {'yes' if torch['gloo'] else 'no'}",
        "This torch has no NCCL: install the official CUDA build for Linux.",
    )


def _check_cores() -> Check:
    host = detect_host()
    memory, name = format_bytes(host.memory_bytes), host.cpu_name or "unknown CPU"
    observed = f"{host.cpu_cores} cores, {memory} ({name})"
    needed = 2 * max(1, len(host.gpus))
    fix = f"{needed} cores or more feed {len(host.gpus)} GPUs; data loading may be the bottleneck."
    return _check("cpu and memory", (host.cpu_cores or 0) >= needed or not host.gpus, observed, fix)


def _check_price() -> Check:
    try:
        price = detection.host_price()
    except UsageError as error:
        return _check("price", ok=False, observed=str(error), fix="Set it again, or unset it.")
    return _check("price", ok=True, observed=f"{format_usd(price)} an hour" if price else "not set")


def _check_shm() -> Check:
    try:
        total = shutil.disk_usage(_SHM).total
    except OSError:
        return _check(
            "shared memory", ok=False, observed=f"{_SHM} is missing", fix="mount a tmpfs there"
        )
    return _check(
        "shared memory",
        total >= _MIN_SHM_BYTES,
        f"{_SHM} {format_bytes(total)}",
        "Data-loader workers and NCCL need more: docker run --shm-size=16g (or --ipc=host).",
    )


def _check_port() -> Check:
    try:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
    except OSError as error:
        return _check(
            "ports", ok=False, observed=str(error), fix="Loopback must allow binding a port."
        )
    with socket.socket() as probe:
        is_in_use = probe.connect_ex(("127.0.0.1", 29500)) == 0
    note = "; port 29500 is in use, which does not matter" if is_in_use else ""
    return _check("ports", ok=True, observed=f"free port available (tried {port}){note}")


def _check_store(store: Store) -> Check:
    fix = "Choose another folder with --store DIR or WORKBENCH_STORE=DIR."
    try:
        store.root.mkdir(parents=True, exist_ok=True)
        probe = store.root / f".doctor-{os.getpid()}"
        probe.write_text("probe")
        probe.unlink()
    except OSError as error:
        return _check(
            "run store", ok=False, observed=f"{store.root}: {error.strerror or error}", fix=fix
        )
    return _check("run store", ok=True, observed=str(store.root))


def _check_disk(store: Store) -> Check:
    free = disk_free(store.root if store.root.exists() else store.root.parent)
    return _check(
        "disk",
        free is not None and free >= _MIN_DISK_BYTES,
        f"{format_bytes(free)} free for {store.root}",
        "Checkpoints need space: free some, or put the store on a larger volume with --store DIR.",
    )


def _check_jupyter() -> Check:
    packages = ("jupyterlab", "ipywidgets", "anywidget", "plotly")
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    return _check(
        "notebook",
        not missing,
        "JupyterLab, ipywidgets, anywidget, plotly"
        if not missing
        else f"missing: {', '.join(missing)}",
        f"{pip_install('training-workbench[lab]')} (only the widgets need them)",
    )
