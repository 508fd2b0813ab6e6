"""Whether the installed torch can use this host's NVIDIA driver, and which one could.

torch is not loaded for that: its version file tells what it was built for.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

from workbench.describe.amd import VENDOR as AMD
from workbench.describe.bounded_calls import DRIVER
from workbench.describe.detection import nvml, vendor


def cuda_version() -> str | None:
    """The newest CUDA that the driver can do, as "12.8"; None where it does not say."""
    library = nvml()
    reported = library and DRIVER.ask(lambda: int(library.nvmlSystemGetCudaDriverVersion()))
    if reported is None:
        return None
    number = int(reported)
    return f"{number // 1000}.{number % 1000 // 10}"


def why_no_cuda() -> str | None:
    """Why no rank could use a GPU of this host, and what helps; None where nothing is known of it.

    Ranks whose torch cannot use the GPU would train on the CPU, each by itself, without a word.
    """
    spec = importlib.util.find_spec("torch")
    if nvml() is None or spec is None or spec.origin is None:
        return None
    try:
        text = Path(spec.origin).with_name("version.py").read_text(encoding="utf-8")
    except OSError:
        return None
    if vendor() == AMD:
        return None if re.search(r"^hip\b[^=\n]*=\s*'", text, re.MULTILINE) else _NO_ROCM
    built = re.search(r"^cuda\b[^=\n]*=\s*'(\d+)", text, re.MULTILINE)
    version = cuda_version()
    driver = None if version is None else int(version.partition(".")[0])
    if built is not None and (driver is None or int(built[1]) <= driver):
        return None
    target = "the CPU" if built is None else f"CUDA {built[1]}"
    can = "has an NVIDIA driver" if driver is None else f"has a driver that can do CUDA {driver}"
    return (
        f"torch is built for {target}, and this host {can}: no rank could use its GPU. "
        f"{torch_that_fits()}"
    )


_NO_ROCM = (
    "torch is not built for ROCm, and this host has AMD GPUs: no rank could use them. Install a "
    "ROCm build (in the repository: WORKBENCH_TORCH_INDEX=https://download.pytorch.org/whl/rocm6.4 "
    "python3 environments/setup_venv.py --rebuild)."
)


def torch_that_fits() -> str:
    """What to install."""
    if vendor() == AMD:
        return _NO_ROCM
    driver = (cuda_version() or "").partition(".")[0]
    return (
        "Install a torch that fits (in the repository: WORKBENCH_TORCH_INDEX="
        f"https://download.pytorch.org/whl/{_wheels(int(driver or 12))} "
        "python3 environments/setup_venv.py --rebuild)."
    )


def _wheels(driver: int) -> str:
    """Folder of torch's builds that any driver of that CUDA generation can run.

    >>> [_wheels(one) for one in (11, 12, 13)]
    ['cu118', 'cu126', 'cu130']
    """
    return {11: "cu118", 12: "cu126"}.get(driver, "cu130")
