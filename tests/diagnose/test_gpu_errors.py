"""What CUDA, HIP, their libraries and NCCL say when they fail, as quoted in public issues."""

from __future__ import annotations

import pytest

from workbench.diagnose import known_errors
from workbench.recover.policy import Recovery
from workbench.recover.restarts import Failure, Restarts

ASYNC = (
    "\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace "
    "below might be incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
)
COUNT = (
    "RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions "
    "before calling NumCudaDevices() that might have already set an error? "
)
NCCL = (
    "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/"
    "ProcessGroupNCCL.cpp:1691, {}, NCCL version 2.21.5\n{}\nLast error:\n{}"
)
SAYS = [
    (f"RuntimeError: CUDA error: invalid device ordinal{ASYNC}", "device-ordinal", "LOCAL_RANK"),
    (f"torch.AcceleratorError: HIP error: invalid device ordinal{ASYNC}", "device-ordinal", ""),
    (
        f"RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable{ASYNC}",
        "gpu-busy",
        "nvidia-smi -c 0",
    ),
    (
        "RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable",
        "gpu-busy",
        "--devices",
    ),
    ("RuntimeError: CUDA error: exclusive-thread device already in use", "gpu-busy", ""),
    (f"{COUNT}Error 802: system not yet initialized", "gpu-not-ready", "fabricmanager"),
    (
        "RuntimeError: cuda runtime error (802) : system not yet initialized at THCGeneral.cpp:50",
        "gpu-not-ready",
        "",
    ),
    (
        f"{COUNT}Error 803: system has unsupported display driver / cuda driver combination",
        "version-mismatch",
        "doctor",
    ),
    (f"{COUNT}Error 804: forward compatibility was attempted on non", "version-mismatch", ""),
    (f"{COUNT}Error 304: OS call failed or operation not supported", "gpu-initialization", ""),
    (
        "RuntimeError: CUDA driver initialization failed, you might not have a CUDA gpu.",
        "gpu-initialization",
        "workbench doctor",
    ),
    (
        (
            "RuntimeError: CUDA unknown error - this may be due to an incorrectly set up environment, "
            "e.g. changing env variable CUDA_VISIBLE_DEVICES after program start."
        ),
        "gpu-initialization",
        "nvidia-modprobe",
    ),
    ("RuntimeError: CUDA error: initialization error", "gpu-initialization", "forked"),
    ("RuntimeError: No HIP GPUs are available", "no-gpu", ""),
    ("RuntimeError: CUDA error: no CUDA-capable device is detected", "no-gpu", ""),
    ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate", "out-of-memory", ""),
    ("torch.OutOfMemoryError: HIP out of memory. Tried to allocate", "out-of-memory", ""),
    ("RuntimeError: HIP out of memory. Tried to allocate 2.00 MiB", "out-of-memory", ""),
    ("RuntimeError: CUDA driver error: out of memory", "out-of-memory", ""),
    (
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "out-of-memory",
        "",
    ),
    ("RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED", "out-of-memory", ""),
    ("RuntimeError: CUDA error: HIPBLAS_STATUS_ALLOC_FAILED when calling", "out-of-memory", ""),
    (
        (
            'RuntimeError: NVML_SUCCESS == r INTERNAL ASSERT FAILED at "../c10/cuda/CUDACachingAllocator'
            '.cpp":1131, please report a bug to PyTorch.'
        ),
        "out-of-memory",
        "",
    ),
    (f"RuntimeError: CUDA error: uncorrectable ECC error encountered{ASYNC}", "gpu-lost", ""),
    (
        "RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution",
        "gpu-lost",
        "",
    ),
    (
        (
            f"RuntimeError: CUDA error: an illegal memory access was encountered{ASYNC}Exception raised "
            "from create_event_internal at ../c10/cuda/CUDACachingAllocator.cpp:1055 (most recent call"
        ),
        "cuda-error",
        "CUDA_LAUNCH_BLOCKING",
    ),
    ("RuntimeError: CUDA error: misaligned address", "cuda-error", ""),
    ("RuntimeError: CUDA error: unspecified launch failure", "cuda-error", ""),
    (
        "Memory access fault by GPU node-1 (Agent handle: 0x55) on address 0x7f. Reason: Unknown.",
        "cuda-error",
        "AMD_SERIALIZE_KERNEL",
    ),
    ("RuntimeError: HIP error: invalid device function", "version-mismatch", ""),
    (
        "RuntimeError: CUDA error: the provided PTX was compiled with an unsupported toolchain.",
        "version-mismatch",
        "",
    ),
    (
        "RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm( handle",
        "gpu-library",
        "earlier kernel",
    ),
    ("RuntimeError: cuDNN error: CUDNN_STATUS_INTERNAL_ERROR", "gpu-library", "micro-batch"),
    (f"RuntimeError: CUDA error: invalid argument{ASYNC}", "gpu-error", "CUDA_LAUNCH_BLOCKING=1"),
    (
        NCCL.format(
            "invalid usage",
            "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.",
            "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 10",
        ),
        "duplicate-gpu",
        "set_device",
    ),
    (
        NCCL.format(
            "unhandled cuda error",
            "ncclUnhandledCudaError: Call to CUDA function failed.",
            "Cuda failure 2 'out of memory'",
        ),
        "out-of-memory",
        "",
    ),
    (
        NCCL.format(
            "unhandled cuda error",
            "ncclUnhandledCudaError: Call to CUDA function failed.",
            "Cuda failure 'invalid device ordinal'",
        ),
        "device-ordinal",
        "",
    ),
    (
        NCCL.format(
            "unhandled system error",
            "ncclSystemError: System call (e.g. socket, malloc) or external library call failed",
            "Error while creating shared memory segment /dev/shm/nccl-fhJhEZ (size 9637888), error: "
            "No space left on device (28)",
        ),
        "shared-memory",
        "--shm-size",
    ),
    (
        NCCL.format(
            "remote process exited or there was a network error",
            "ncclRemoteError: A call failed possibly due to a network error or a remote process",
            "socketProgress: Connection closed by remote peer",
        ),
        "peer-lost",
        "other ranks",
    ),
    (
        NCCL.format("internal error", "ncclInternalError: Internal check failed.", ""),
        "nccl-error",
        "NCCL_DEBUG",
    ),
]


@pytest.mark.parametrize(("text", "kind", "move"), SAYS)
def test_a_failure_of_a_gpu_has_its_kind_and_a_next_move(text: str, kind: str, move: str) -> None:
    known = known_errors.recognise(text)
    assert known is not None
    assert known.kind == kind
    assert move in known.action(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("torch.OutOfMemoryError: HIP out of memory. Tried to allocate", "memory"),
        ("RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED", "memory"),
        ("RuntimeError: CUDA error: invalid device ordinal", "GPU of its own"),
        ("RuntimeError: HIP error: unspecified launch failure", None),
        ("RuntimeError: CUDA error: uncorrectable ECC error encountered", None),
    ],
)
def test_what_would_fail_again_is_not_started_again(text: str, why: str | None) -> None:
    restarts = Restarts(Recovery(restarts=3))
    decision = restarts.decide(Failure(message="failed", last_step=9, exception=text))
    assert decision.restart == (why is None)
    assert (why or "") in decision.why
