"""Which variables of a record (run.json) are given to a training that is started from it again.

Variables can make Python, the loader or NCCL run any code, or send a token elsewhere. So a value is
taken from a record that this user's workbench wrote (see `vouching`), or if it only tunes a
training. Any other must be set where the run is resumed: then that value counts, as for secrets.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from workbench.describe.detection import CHOOSE_GPUS
from workbench.errors import UsageError
from workbench.launching.capture import SITE_FOLDER
from workbench.store.processes import MARKER
from workbench.store.run_record import RunRecord
from workbench.store.secrets import HIDDEN
from workbench.store.signatures import is_vouched

_APPLIED = re.compile(
    r"WORKBENCH_(?!STORE|TRUSTED)\w+|ACCELERATE_\w+|FSDP_\w+|PARALLELISM_CONFIG_\w+"
    r"|(?:OMP|MKL|OPENBLAS|NUMEXPR|VECLIB|BLIS)_NUM_THREADS|OMP_(?:PROC_BIND|PLACES|DYNAMIC)"
    r"|KMP_(?:AFFINITY|BLOCKTIME|SETTINGS)|TORCH_NUM_THREADS"
    r"|(?:MASTER_ADDR|MASTER_PORT|WORLD_SIZE|NODE_RANK|GLOO_SOCKET_IFNAME|TP_SOCKET_IFNAME)"
    r"|NCCL_(?:DEBUG(?:_SUBSYS)?|SOCKET_IFNAME|IB_\w+|P2P_\w+|SHM_DISABLE|ALGO|PROTO|NTHREADS"
    r"|MIN_\w+|MAX_\w+|BUFFSIZE|NET_GDR_\w+|CROSS_NIC|TIMEOUT|NVLS_ENABLE|CUMEM_\w+)"
    r"|CUDA_(?:VISIBLE_DEVICES|DEVICE_ORDER|LAUNCH_BLOCKING|DEVICE_MAX_CONNECTIONS)"
    r"|CUBLAS_WORKSPACE_CONFIG|NVIDIA_TF32_OVERRIDE|(?:HIP|ROCR)_VISIBLE_DEVICES"
    r"|PYTORCH_(?:CUDA_)?ALLOC_CONF|PYTORCH_NVML_BASED_CUDA_CHECK"
    r"|TORCH_(?:NCCL_(?!DEBUG_INFO)\w+|DISTRIBUTED_DEBUG|SHOW_CPP_STACKTRACES|CPP_LOG_LEVEL)"
    r"|TOKENIZERS_PARALLELISM|(?:HF_HUB|HF_DATASETS|TRANSFORMERS)_OFFLINE|DS_SKIP_CUDA_CHECK"
    r"|PYTHON(?:HASHSEED|UNBUFFERED|UTF8|FAULTHANDLER)|KERAS_BACKEND|TF_(?:CPP|ENABLE)_\w+"
)

_PLACES = {"PYTHONPATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "CUDA_HOME", "HF_HOME"}
_OF_A_LAUNCH = (
    *("WORKBENCH_", "ACCELERATE_", "FSDP_", "PARALLELISM_", "MASTER_", "WORLD_SIZE", "NODE_RANK"),
    *("GLOO_", "TP_SOCKET_", "PYTHONUNBUFFERED", *CHOOSE_GPUS),
)


def is_applied(name: str) -> bool:
    """Whether a variable of that name only tunes a training.

    >>> is_applied("OMP_NUM_THREADS"), is_applied("PYTHONPATH"), is_applied("LD_PRELOAD")
    (True, False, False)
    """
    return name == MARKER or _APPLIED.fullmatch(name) is not None


def tuning_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Those that change how a training runs or what it finds, without those that a launch sets."""
    return {
        name: value
        for name, value in sorted(environment.items())
        if name in _PLACES or (is_applied(name) and not name.startswith(_OF_A_LAUNCH))
    }


def recorded_value(run: RunRecord, name: str, value: str) -> str:
    """The value of a variable of the record for a start from it: its own, or this environment's.

    Raises:
        UsageError: it is neither one that a record can set, nor set in this environment.
    """
    if value != HIDDEN and is_vouched(run, name, value):
        return _own_hook(value) if name == "PYTHONPATH" else value
    if name == "PYTHONPATH":
        return _python_path(run, value, os.environ.get(name, ""))
    if value != HIDDEN and is_applied(name):
        return value
    if name not in os.environ:
        raise _missing(run, name, value)
    return os.environ[name]


def _python_path(run: RunRecord, recorded: str, present: str) -> str:
    """This installation's hook, if the record had one, and what this environment's own says.

    >>> _python_path(RunRecord(), "/there/capture/site:/mine", "/mine").endswith("/site:/mine")
    True
    """
    old = [part for part in recorded.split(os.pathsep) if part]
    hooked = bool(old) and _is_hook(old[0])
    entries = [str(SITE_FOLDER)] if hooked else []
    own = [part for part in present.split(os.pathsep) if part and part not in entries]
    missing = [name for name in old[hooked:] if name not in own]
    if missing:
        raise _missing(run, "PYTHONPATH", os.pathsep.join(missing))
    return os.pathsep.join([*entries, *own])


def _own_hook(recorded: str) -> str:
    """`recorded` with this installation's hook in place of the record's, which may have moved."""
    first, separator, rest = recorded.partition(os.pathsep)
    return f"{SITE_FOLDER}{separator}{rest}" if _is_hook(first) else recorded


def with_hook(variables: Mapping[str, str]) -> dict[str, str]:
    """Variables that a resume gives; the hook stays before a PYTHONPATH, as at a launch."""
    path = variables.get("PYTHONPATH")
    if path is None:
        return dict(variables)
    return {**variables, "PYTHONPATH": os.pathsep.join(filter(None, [str(SITE_FOLDER), path]))}


def _is_hook(entry: str) -> bool:
    return Path(entry).parts[-2:] == SITE_FOLDER.parts[-2:]


def _missing(run: RunRecord, name: str, value: str) -> UsageError:
    if value == HIDDEN:
        return UsageError(
            f"{run.run} was started with the secret variable {name}, which run.json does "
            f"not keep. Set {name} in this environment, then repeat the command."
        )
    return UsageError(
        f"{run.run} was started with {name}={value!r}. It is not known that you set it (its "
        f"record comes from elsewhere, or your key is gone). Set {name} in this environment if it "
        "should count, then repeat the command."
    )
