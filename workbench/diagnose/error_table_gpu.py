"""Known errors of GPUs, their drivers and libraries: of CUDA, HIP and NCCL; see `error_table`.

Texts are those of cudaGetErrorString and hipGetErrorString, of c10/cuda in torch 1.13 to 2.13, and
of NCCL 2.18 to 2.28, as people quote them in public issues (pytorch 35710, 2704, 47885, 131117).
"""

from __future__ import annotations

from workbench.diagnose.error_table import known_error

# Before what could be their echo: NCCL quotes errors of CUDA and of the system, and a GPU that
# cannot be used is told by many to be none.
GPU = (
    known_error(
        "gpu-not-ready",
        r"system not yet initialized|cudaErrorSystemNotReady|CUDA_ERROR_SYSTEM_NOT_READY",
        "The GPUs of this machine are linked by NVSwitches, which a service has to set up first: "
        "the fabric manager of the driver's own release. `systemctl status nvidia-fabricmanager` "
        "and `nvidia-smi -q` (Fabric) show it; start it as root, or take another machine: on a "
        "rented one only its provider can.",
        0.95,
    ),
    known_error(
        "gpu-busy",
        r"CUDA-capable devices? (is|are) busy|device\(s\) is/are busy or unavailable|"
        r"exclusive-thread device already in use|"
        r"cudaErrorDevice(s|Already)?(Unavailable|InUse)|CUDA_ERROR_DEVICE_UNAVAILABLE",
        "Another process holds the GPU for itself (exclusive mode), or left it in a bad state: "
        "`nvidia-smi` lists the processes and the compute mode. End that process, use other GPUs "
        "(--devices), or allow several processes as root: `nvidia-smi -c 0`. With one GPU in "
        "exclusive mode only one rank can use it.",
    ),
    known_error(
        "duplicate-gpu",
        r"Duplicate GPU detected",
        "Two ranks use the same GPU: each has to take its own, torch.cuda.set_device(LOCAL_RANK) "
        "or Accelerator().device, and there may be no more ranks than GPUs (--nproc).",
        0.95,
    ),
    known_error(
        "device-ordinal",
        r"invalid device ordinal|hipErrorInvalidDevice\b|cudaErrorInvalidDevice\b|"
        r"CUDA_ERROR_INVALID_DEVICE\b|Invalid device id\b",
        "The script asks for a GPU with a number that this process does not see: there are more "
        "ranks than GPUs (--nproc, --devices), or the number is fixed in the script. GPUs that a "
        "process sees count from 0: use cuda:LOCAL_RANK.",
        0.95,
    ),
    known_error(
        "shared-memory",
        r"shared memory segment /dev/shm/nccl|/dev/shm/nccl\S*[^\n]*No space left",
        "NCCL has too little of /dev/shm: start the container with --shm-size=8g or --ipc=host "
        "(in Kubernetes an emptyDir of medium Memory); `df -h /dev/shm` shows what there is.",
        0.95,
    ),
    known_error(
        "gpu-lost",
        r"fallen off the bus|GPU is lost|uncorrectable (ECC|NVLink)|\bXid \(|"
        r"(CUDA|HIP) error: (hardware|ECC)|cudaErrorECCUncorrectable|CUDA_ERROR_ECC_UNCORRECTABLE",
        "A GPU failed: exclude it (CUDA_VISIBLE_DEVICES) or use another machine, then {again}.",
        0.8,
    ),
    known_error(
        "cuda-error",
        r"device-side assert|illegal memory access|misaligned address|an illegal instruction was|"
        r"invalid program counter|unspecified launch failure|launch timed out|"
        r"[Mm]emory access fault by GPU",
        "A kernel got values out of range, often a label or token id beyond the last one: run "
        "again on CPU or with CUDA_LAUNCH_BLOCKING=1 (AMD: AMD_SERIALIZE_KERNEL=3) to see the "
        "line. Where the same script runs well on other cards, it is the card.",
        0.8,
    ),
)
# Behind "no GPU" and "version mismatch", whose words are more exact.
GENERAL = (
    known_error(
        "gpu-initialization",
        r"CUDA driver initialization failed|CUDA unknown error|"
        r"[Uu]nexpected error from (cuda|hip)GetDeviceCount|(CUDA|HIP) error: initialization error|"
        r"cudaErrorInitializationError|CUDA_ERROR_NOT_INITIALIZED|driver shutting down",
        "CUDA cannot start here: `workbench doctor` shows what torch and the driver say. Most often "
        "the driver was updated and the machine not restarted, the container was started without "
        "its GPUs (--gpus all), /dev/nvidia-uvm is missing (`nvidia-modprobe -u -c 0` as root), or "
        "a process that used CUDA was forked.",
        0.85,
    ),
    known_error(
        "gpu-library",
        r"CU(BLAS(LT)?|DNN|SPARSE|SOLVER|FFT|RAND)_STATUS_\w+|cuDNN error|"
        r"(HIPBLAS|ROCBLAS|MIOPEN|rocblas|miopen)_?[Ss](TATUS|tatus)\w*",
        "A library of the GPU failed (cuBLAS, cuDNN and others). Two causes are usual: hardly any "
        "memory was left (try half the micro-batch), or an earlier kernel failed: run once with "
        "CUDA_LAUNCH_BLOCKING=1, which names its line. `workbench doctor` compares the versions.",
        0.7,
    ),
    known_error(
        "gpu-error",
        r"(CUDA|HIP) (driver |runtime )?error\b|cuda runtime error|\bcudaError[A-Z]\w+|"
        r"\bhipError[A-Z]\w+|\bCUDA_ERROR_[A-Z_]+",
        "The GPU's driver refused or failed at a call; the line named may be a later one than that "
        "of the cause: run once with CUDA_LAUNCH_BLOCKING=1 (AMD: AMD_SERIALIZE_KERNEL=3), and see "
        "`dmesg` for an Xid.",
        0.6,
    ),
)
