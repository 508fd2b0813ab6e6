"""NVIDIA's own profilers where they are present: Nsight Systems around a run, DCGM beside it.

Neither is installed by the workbench. Nsight Systems is refused in a sentence where it is missing;
DCGM is simply not asked.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Generator

from workbench.errors import HostError

NSYS_REPORT = "nsys.nsys-rep"
_PERIOD_MS = 200
_END_SECONDS = 5.0
_MAX_OUTPUT = 4 << 20
DCGM_FIELDS = {
    1002: "sm_active",
    1003: "sm_occupancy",
    1004: "tensor_active",
    1005: "memory_active",
    1009: "pcie_sent_bytes_per_second",
    1010: "pcie_received_bytes_per_second",
    1011: "nvlink_sent_bytes_per_second",
    1012: "nvlink_received_bytes_per_second",
}
"""DCGM's profiling fields by number; the first four are shares of the time, 0 to 1."""


def nsys_wrapper() -> tuple[str, ...]:
    """The command that runs a launcher under Nsight Systems, every process of it.

    Raises:
        HostError: there is no ``nsys`` here.
    """
    path = shutil.which("nsys")
    if path is None:
        raise HostError(
            "--nsys needs Nsight Systems, and nsys is not on PATH. Install NVIDIA's package "
            "nsight-systems, or remove --nsys."
        )
    report = "{run}/" + NSYS_REPORT.removesuffix(".nsys-rep")
    return (
        path,
        "profile",
        "--trace=cuda,nvtx,osrt,cublas,cudnn",
        "--sample=none",
        "--cpuctxsw=none",
        "--trace-fork-before-exec=true",
        "--force-overwrite=true",
        f"--output={report}",
    )


@contextlib.contextmanager
def dcgm_sampled() -> Generator[dict[str, dict[str, float]]]:
    """Sample DCGM's profiling fields meanwhile; filled at the end: GPU -> field -> mean.

    Empty where there is no ``dcgmi``, or it may not read them.
    """
    means: dict[str, dict[str, float]] = {}
    program = shutil.which("dcgmi")
    if program is None:
        yield means
        return
    numbers = ",".join(map(str, DCGM_FIELDS))
    with tempfile.TemporaryFile() as output:  # a file: no one empties a pipe meanwhile
        command = [program, "dmon", "-e", numbers, "-d", str(_PERIOD_MS)]
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.DEVNULL
        )
        try:
            yield means
        finally:
            process.terminate()
            try:
                process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            output.seek(0)
            means |= dcgm_means(output.read(_MAX_OUTPUT).decode("utf-8", errors="replace"))


def dcgm_means(text: str) -> dict[str, dict[str, float]]:
    r"""Means per GPU of what ``dcgmi dmon`` printed: a line per GPU and sample, N/A left out.

    >>> dcgm_means("#Entity SMACT\nGPU 0  0.5 N/A\nGPU 0  0.7 0.2")
    {'0': {'sm_active': 0.6, 'sm_occupancy': 0.2}}
    """
    values: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for line in text.splitlines():
        words = line.split()
        if len(words) < 3 or words[0] != "GPU":
            continue
        for name, word in zip(DCGM_FIELDS.values(), words[2:], strict=False):
            with contextlib.suppress(ValueError):
                reading = float(word)
                values[words[1]][name].append(reading)
    return {
        gpu: {name: sum(readings) / len(readings) for name, readings in fields.items()}
        for gpu, fields in values.items()
    }
