"""Known errors of machine, environment and hub: the text each is told by, the next move.

A table is read from its top: what is told in one place by several libraries comes first, what
could be the echo of another error last. A next move may name groups of its pattern.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KnownError:
    """A kind of error, the text it is told by, and the next move."""

    kind: str
    pattern: re.Pattern[str]
    next: str
    confidence: float = 0.9

    def action(self, text: str, again: str = "start it again") -> str:
        """The next move, with the names that stand in `text`; `again`: how this run continues."""
        match = self.pattern.search(text)
        named = {
            name: value for name, value in (match.groupdict() if match else {}).items() if value
        }
        text = self.next.format_map(_Words(named, again=again))
        unnamed = text.startswith(tuple(f"{name} " for name in _UNNAMED.values()))
        return text[:1].upper() + text[1:] if unnamed else text


class _Words(dict[str, str]):
    def __init__(self, named: dict[str, str], **more: str) -> None:
        super().__init__(named, **more)
        module = named.get("module", "")
        self["package"] = _PACKAGES.get(module.partition(".")[0], module.partition(".")[0])

    def __missing__(self, name: str) -> str:
        return _UNNAMED.get(name, "it")


_PACKAGES = {  # import names whose package is called otherwise
    "cv2": "opencv-python-headless",
    "PIL": "pillow",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
    "skimage": "scikit-image",
    "flash_attn": "flash-attn",
    "google": "protobuf",
    "dotenv": "python-dotenv",
    "bs4": "beautifulsoup4",
    "hydra": "hydra-core",
}
_UNNAMED = {"path": "the path", "name": "the name", "module": "the module", "package": "it"}


def known_error(kind: str, pattern: str, action: str, confidence: float = 0.9) -> KnownError:
    """A row of the table."""
    return KnownError(kind, re.compile(pattern), action, confidence)


OUT_OF_MEMORY = "out-of-memory"
MEMORY = (
    known_error(
        OUT_OF_MEMORY,
        r"(CUDA|HIP) (driver )?(error: )?out of memory|([Cc]uda|HIP) failure[^\n]*out of memory|"
        r"NVML_SUCCESS == \w+ INTERNAL ASSERT FAILED|"  # where torch wants to tell what is left
        r"OutOfMemoryError|DefaultCPUAllocator: can't allocate|not enough memory: you tried to "
        r"allocate|(CU|HIP)\w+_STATUS_ALLOC_FAILED|rocblas_status_memory_error|miopenStatusAlloc|"
        r"cudaErrorMemoryAllocation|hipErrorOutOfMemory|CUDA_ERROR_OUT_OF_MEMORY|"
        r"bad_alloc|Cannot allocate memory",
        "Out of memory: halve the micro-batch and double the accumulation; the result is the same.",
    ),
    known_error(
        "host-memory",
        r"MemoryError",
        "The host has no memory left for what the line named builds: read the data in pieces (an "
        "iterable or memory-mapped data set), start fewer loader workers, or take a larger host.",
    ),
)
ENVIRONMENT = (
    known_error(
        "no-gpu",
        r"not compiled with CUDA|_cuda_setDevice|No (CUDA|HIP) GPUs are available|"
        r"no (CUDA|ROCm)-capable device is detected|cudaErrorNoDevice|hipErrorNoDevice|"
        r"Found no NVIDIA driver|Torch not compiled|CUDA (device )?(is )?not available",
        "The script needs a GPU and none is available: run it on a GPU host, or let "
        "Accelerator().device choose.",
    ),
    known_error(
        "device-string",
        r"device string: '?(?P<name>[\w:.-]+)",
        "torch has no device {name}: a GPU of NVIDIA or AMD is cuda, or cuda:N with N from "
        "LOCAL_RANK; without a GPU it is cpu.",
        0.95,
    ),
    known_error(
        "version-mismatch",
        r"CUDA driver version is insufficient|driver on your system is too old|no kernel image is "
        r"available|invalid device function|unsupported toolchain|unsupported display driver|"
        r"hipErrorNoBinaryForGpu|undefined symbol|version `GLIBC\w*' not found|forward "
        r"compatibility was attempted|lib(cud|nccl|nv)\S* *: (cannot open|version)|numpy\.dtype "
        r"size changed|compiled using NumPy 1",
        "Driver, CUDA, torch and NCCL are incompatible: `workbench doctor` lists them; install "
        "the torch build that the driver supports.",
        0.85,
    ),
    known_error(
        "unknown-architecture",
        r"model type `?(?P<name>[\w-]+)`? but Transformers does not recognize|does not recognize "
        r"this architecture",
        "The installed transformers does not know the model type {name}: "
        "`pip install -U transformers`, or the release that the model card names.",
    ),
    known_error(
        "circular-import",
        r"partially initialized module '(?P<module>[\w.]+)'",
        "A file of the project named like the library {module} shadows it, or two files import "
        "each other: rename the file, or move one import into the function that needs it.",
    ),
    known_error(
        "own-module",
        r"cannot import name '(?P<name>[^']+)' from '(?P<module>[\w.]+)' "
        r"\((?P<path>(?![^)]*(site|dist)-packages|[^)]*/lib/python\d)[^)]+)\)",
        "{module} is the file {path} here, and it has no {name}. If the library {module} was meant, "
        "rename that file, which hides it.",
    ),
    known_error(
        "version-conflict",
        r"cannot import name '(?P<name>[^']+)' from '(?P<module>[\w.]+)'|cannot import name|"
        r"AttributeError: module '(?P<owner>[\w.]+)' has no attribute|"
        r"is required for a normal functioning of this module, but found|VersionConflict",
        "{name} does not exist in the installed version of {package}: check its version with `pip "
        "show {package}` and install the one that the code was written for.",
        0.85,
    ),
    known_error(
        "missing-module",
        r"No module named '?(?P<module>[\w.]+)|requires the (?P<library>\S+) library but it was "
        r"not found|[Cc]ould not import module '(?P<class>\w+)'|not found in your environment|"
        r"PackageNotFoundError",
        "If the name is spelt right, install its package with the Python that starts the script: "
        "`python -m pip install {package}`.",
    ),
    known_error(
        "unexpected-argument",
        r"(?P<call>[\w.]+)\(\) got an unexpected keyword argument '(?P<name>\w+)'",
        "The installed version of {call} has no argument {name}: it was renamed or removed, or is "
        "misspelt. Compare `pip show` of its library with the version the script was written for.",
        0.8,
    ),
    known_error(
        "compile-failed",
        r"torch\._dynamo\.exc|InductorError|BackendCompilerFailed|[Ff]ailed to find C compiler|"
        r"cannot find -lcuda|triton\.compiler|CompilationError",
        "torch.compile failed: run once with TORCHDYNAMO_DISABLE=1; if that works, install a C "
        "compiler or leave that part uncompiled.",
        0.8,
    ),
    known_error(
        "no-launcher",
        r"environment variable (?P<name>RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT) expected|"
        r"KeyError: '(LOCAL_RANK|RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT)'",
        "The script expects torchrun's variables: launch it with --nproc 2 or more, or give them "
        "to one process: --env RANK=0 --env LOCAL_RANK=0 --env WORLD_SIZE=1 "
        "--env MASTER_ADDR=127.0.0.1 --env MASTER_PORT=0.",
    ),
    known_error(
        "no-process-group",
        r"Default process group has not been initialized",
        "Call init_process_group() or make an Accelerator() before the first collective.",
    ),
)
MACHINE = (
    known_error(
        "disk-full",
        r"No space left on device|Disk quota exceeded|File too large|ENOSPC",
        "The disk is full: free space there, or write to another one (--store for the run and its "
        "checkpoints; the script's output folder; HF_HOME for downloads; TMPDIR).",
    ),
    known_error(
        "open-files",
        r"Too many open files|received 0 items of ancdata|EMFILE",
        "The limit of open files is reached: raise it (`ulimit -n 65536`), lower num_workers, or "
        "use torch.multiprocessing.set_sharing_strategy('file_system').",
    ),
    known_error(
        "port-in-use",
        r"EADDRINUSE|Address already in use",
        "Another program uses the port: stop it, or let the workbench choose a free port.",
    ),
    known_error(
        "network-interface",
        r"[Uu]nable to find (interface|address)|makeDeviceFor|[Nn]o socket interface found|Unable "
        r"to resolve hostname|No route to host",
        "Name the interface that the machines share: GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME "
        "(`ip addr` lists them).",
        0.85,
    ),
)
PROCESSES = (
    known_error(
        "spawn-guard",
        r"before the current process has finished its bootstrapping phase|An attempt has been made "
        r"to start a new process before",
        "The script starts processes when it is imported: move that code below "
        '`if __name__ == "__main__":`.',
        0.95,
    ),
    known_error(
        "cuda-fork",
        r"Cannot re-initialize CUDA in forked subprocess",
        "Processes are forked after CUDA was used: use the spawn start method, or do not touch a "
        "GPU before they start.",
        0.95,
    ),
    known_error(
        "weights-only",
        r"Unsupported (global|class)|Weights only load failed(?![\s\S]*Unsupported operand)",
        "The file holds Python objects, which torch.load does not read by default: save only "
        "tensors (state_dict), or allow the classes with torch.serialization.safe_globals if you "
        "trust the file.",
    ),
    known_error(
        "unpicklable",
        r"[Cc]an(?:'|no)t pickle|Can't get (local object|attribute) |PicklingError|"
        r"cannot pickle '(?P<name>[^']+)' object",
        "What goes to another process must be picklable: define functions and classes at the top "
        "of a module (no lambda, no local function), and open files, locks and sessions inside the "
        "worker; num_workers=0 shows whether the loader is it.",
    ),
    known_error(
        "loader-worker",
        r"DataLoader worker \(pid[^)]*\) (is killed|exited)|DataLoader worker.*exited unexpectedly|"
        r"insufficient shared memory|out of shared memory",
        "A process of the data loader died, mostly for memory: enlarge /dev/shm (docker "
        "--shm-size) or lower num_workers; num_workers=0 shows the error itself.",
        0.85,
    ),
)
HUB = (
    known_error(
        "access-denied",
        r"401 Client Error|403 Client Error|[Gg]ated[ _]?[Rr]epo|GatedRepoError|You must have "
        r"access to it|Invalid user token|Invalid username or password",
        "The model or data set requires a login: accept its terms and set HF_TOKEN.",
    ),
    known_error(
        "tokenizer",
        r"[Cc]an't load tokenizer|does not have a padding token|instantiate the backend tokenizer|"
        r"Tokenizer class \S+ does not exist|TextEncodeInput|chat_template is not set|no chat "
        r"template|padding token",
        "The tokenizer is missing something: its files beside the model, `pip install "
        "sentencepiece tiktoken`, a padding token (tokenizer.pad_token = tokenizer.eos_token) or "
        "a chat template; the text above shows which.",
    ),
    known_error(
        "download-failed",
        r"Error downloading (?P<name>[^\s:]+)|<?urlopen error",
        "A file cannot be downloaded: there is no network here, or its server does not answer. Put "
        "{name} where the script looks for it, from a machine that reaches it.",
        0.85,
    ),
    known_error(
        "hub-unreachable",
        r"outgoing traffic has been disabled|OfflineModeIsEnabled|LocalEntryNotFoundError|couldn't "
        r"connect to 'https|find the requested files in the (disk|local|cached?)|"
        r"Couldn't reach .*on the Hub|NameResolutionError|Name or service not known|Temporary "
        r"failure in name|Max retries exceeded|in the cached files and it looks like",
        "The files are not in the local cache and the hub cannot be reached: download them where "
        "there is a network (`hf download NAME`), set HF_HOME to that cache, or give a local "
        "folder.",
    ),
    known_error(
        "not-on-hub",
        r"Repository Not Found|RepositoryNotFoundError|is not a local folder and is not a valid "
        r"model identifier|HFValidationError|Repo id must|404 Client Error|EntryNotFoundError|does "
        r"not appear to have a file named (?P<name>\S+)|DatasetNotFoundError|doesn't exist on the "
        r"Hub|Couldn't find (a|any) (data ?set|data file)",
        "The model, data set or file does not exist: check the spelling, the owner before the "
        "slash, and, for a local folder, the path from the working directory.",
        0.85,
    ),
)
