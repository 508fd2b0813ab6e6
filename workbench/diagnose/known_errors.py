"""Errors that people have met before: how each is told apart, and what helps."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Known:
    """A kind of error, the text it is told by, and the next move."""

    kind: str
    pattern: re.Pattern[str]
    next: str
    confidence: float = 0.9


def _known(kind: str, pattern: str, action: str, confidence: float = 0.9) -> Known:
    return Known(kind, re.compile(pattern), action, confidence)


OUT_OF_MEMORY = "out-of-memory"
_MEMORY = (
    "Out of memory: halve the micro-batch and double the accumulation; the result is the same."
)
KNOWN = (
    _known(
        OUT_OF_MEMORY,
        r"CUDA (error: )?out of memory|[Cc]uda failure[^\n]*out of memory|CUDACachingAllocator|"
        r"OutOfMemoryError|DefaultCPUAllocator: can't allocate|not enough memory: you tried to "
        r"allocate|CUBLAS_STATUS_ALLOC_FAILED|bad_alloc|MemoryError|Cannot allocate memory",
        _MEMORY,
    ),
    _known(
        "no-gpu",
        r"not compiled with CUDA|_cuda_setDevice|No CUDA GPUs are available|invalid device ordinal|"
        r"Found no NVIDIA driver|Torch not compiled",
        "The script asks for a GPU that is not there: run it where there are GPUs, or let "
        "Accelerator().device choose.",
    ),
    _known(
        "version-mismatch",
        r"CUDA driver version is insufficient|driver on your system is too old|no kernel image is "
        r"available|undefined symbol|version `GLIBC\w*' not found|forward "
        r"compatibility was attempted|lib(cud|nccl|nv)\S* *: (cannot open|version)|numpy\.dtype "
        r"size changed|compiled using NumPy 1",
        "Driver, CUDA, torch and NCCL do not fit together: `workbench doctor` lists them; install "
        "the torch build that the driver supports.",
        0.85,
    ),
    _known(
        "missing-module",
        r"No module named|cannot import name",
        "Install what the script imports into this Python environment.",
    ),
    _known(
        "disk-full",
        r"No space left on device|Disk quota exceeded|File too large|ENOSPC",
        "The disk is full: free space or choose another --store.",
    ),
    _known(
        "port-in-use",
        r"EADDRINUSE|Address already in use",
        "Another program has the port: end it, or let the workbench choose a free one.",
    ),
    _known(
        "network-interface",
        r"[Uu]nable to find (interface|address)|makeDeviceFor|[Nn]o socket interface found|Unable "
        r"to resolve hostname|Name or service not known|No route to host|Temporary failure in name",
        "Name the interface that the machines share: GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME "
        "(`ip addr` lists them).",
        0.85,
    ),
    _known(
        "gpu-lost",
        r"fallen off the bus|GPU is lost|uncorrectable ECC|\bXid \(|CUDA error: unspecified launch "
        r"failure|CUDA error: (hardware|ECC)",
        "A GPU failed: leave it out (CUDA_VISIBLE_DEVICES) or take another machine, then resume "
        "from the newest checkpoint.",
        0.8,
    ),
    _known(
        "cuda-error",
        r"device-side assert|illegal memory access",
        "A kernel got values out of range, often a label or token id beyond the last one: run "
        "again on CPU or with CUDA_LAUNCH_BLOCKING=1 to see the line.",
        0.8,
    ),
    _known(
        "unused-parameters",
        r"Expected to have finished reduction in the prior iteration",
        "Some parameters take no part in the loss: use find_unused_parameters=True (--find-unused) "
        "or freeze them.",
    ),
    _known(
        "collective-timeout",
        r"Watchdog caught collective operation timeout|Timed out waiting \d+ms for (send|recv)|"
        r"monitoredBarrier|DistBackendError: .*[Tt]imeout",
        "A rank did not come to a collective in time: see which one was behind, and whether every "
        "rank has the same number of batches.",
        0.7,
    ),
    _known(
        "nccl-error",
        r"ncclUnhandledCudaError|ncclSystemError|ncclInternalError|NCCL error|ncclInvalidUsage",
        "NCCL failed: run once with NCCL_DEBUG=WARN; in a container check /dev/shm and the links.",
        0.7,
    ),
    _known(
        "access-denied",
        r"401 Client Error|403 Client Error|[Gg]ated[ _]?[Rr]epo|GatedRepoError",
        "The model or data set asks for a login: accept its terms and set HF_TOKEN.",
    ),
)


ABORTS = frozenset(
    {
        OUT_OF_MEMORY,
        "network-interface",
        "gpu-lost",
        "cuda-error",
        "collective-timeout",
        "nccl-error",
    }
)
"""Kinds that torch's C++ tells before it aborts its process, as NCCL's watchdog does."""


def recognise(text: str) -> Known | None:
    """The first known error in `text`; None when it is a new one."""
    return next((known for known in KNOWN if known.pattern.search(text)), None)
