"""Starts ``accelerate launch``: what it inherits, where its output goes, a session of its own.

Warm or cold: see `workbench.launching.warm`.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import final

from workbench.describe.amd import VENDOR as AMD
from workbench.describe.detection import vendor
from workbench.errors import HostError
from workbench.launching.warm.client import (
    NotWarmError,
    WarmProcess,
    WarmSpec,
    server_kind,
    start_process,
)

# What another launcher around us (Slurm, Kubeflow, a run of ours) says of its own ranks.
_FOREIGN = frozenset(
    {
        *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK"),
        *("MASTER_ADDR", "MASTER_PORT", "WORKBENCH_RANK_PID", "TORCHELASTIC_RUN_ID"),
    }
)
# Accelerate's of how ranks are spread and on what: each strategy sets its own.
_SPREADS = re.compile(
    r"ACCELERATE_(USE_\w+|DEEPSPEED_\w+|CONFIG_DS_FIELDS|TORCH_DEVICE)"
    r"|(FSDP|PARALLELISM_CONFIG|MEGATRON_LM)_\w+"
)
LOADERS = ("PYTHONSTARTUP", "PYTHONINSPECT", "PYTHONHOME")
"""They make Python load what someone else wrote: a supervisor does not inherit them."""

SINGLE_PROCESS_VARIABLES = {
    "RANK": "0",
    "LOCAL_RANK": "0",
    "WORLD_SIZE": "1",
    "LOCAL_WORLD_SIZE": "1",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "0",
}
"""Of a single rank: a script that always makes a process group gets one of its own."""


_HIP = "HIP_VISIBLE_DEVICES"


def inherited(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """An environment (None = this process's) without what it says of someone else's ranks."""
    variables = os.environ if environment is None else environment
    foreign = {*_FOREIGN, *spreading(variables)}
    return {key: value for key, value in variables.items() if key not in foreign}


def spreading(variables: Iterable[str]) -> list[str]:
    """Those by which Accelerate spreads ranks: a launch takes them from its strategy alone.

    >>> spreading(["FSDP_VERSION", "ACCELERATE_USE_FSDP", "ACCELERATE_MIXED_PRECISION"])
    ['ACCELERATE_USE_FSDP', 'FSDP_VERSION']
    """
    return sorted(filter(_SPREADS.fullmatch, variables))


def with_visible_gpus(
    environment: Mapping[str, str], *, device: str, ranks: int, script: Path
) -> dict[str, str]:
    """The environment with the GPUs that the ranks are to see: a lone one the first of them.

    A script that cannot be read is left to the launcher, which says so.
    """
    if device != "cuda" or ranks != 1 or takes_several(script):
        return dict(environment)
    names = [name for name in (_HIP, "CUDA_VISIBLE_DEVICES") if environment.get(name)]
    firsts = {name: environment[name].partition(",")[0].strip() for name in names}
    return {**environment, **(firsts or {"CUDA_VISIBLE_DEVICES": "0"})}


def visible(devices: Sequence[str]) -> dict[str, str]:
    """What shows a process these GPUs alone, counted as the driver counts them.

    AMD's runtime chooses by ROCR's variable; HIP then counts those from 0.
    """
    if vendor() == AMD:
        places = ",".join(map(str, range(len(devices))))
        hip_variables = {_HIP: places, "CUDA_VISIBLE_DEVICES": places}
        return {"ROCR_VISIBLE_DEVICES": ",".join(devices), **hip_variables}
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(devices)}


def takes_several(script: Path) -> bool:
    """Whether a lone rank of the script uses all GPUs that it sees; also where no one can tell."""
    from workbench.launching.prepare.targets import takes_all_gpus  # noqa: PLC0415  (a lone rank's affair)

    try:
        return takes_all_gpus(script)
    except (OSError, SyntaxError):
        return True


def start_launcher(
    argv: Sequence[str], *, folder: str, environment: Mapping[str, str], output: Path
) -> subprocess.Popen[bytes]:
    """Start it; `output` is appended to. Raises OSError: no such program, folder or log."""
    with output.open("ab") as log:
        return subprocess.Popen(  # the training's output goes to files, never a pipe
            list(argv),
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


@final
class Launcher:
    """The launcher of one attempt, forked by a warm server or started by us."""

    def __init__(
        self, process: subprocess.Popen[bytes] | WarmProcess, why_cold: str | None = None
    ) -> None:
        self._process = process
        self.why_cold = why_cold
        """Why it was started cold although a warm start was asked for."""

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    @property
    def warm(self) -> bool:
        """Whether it is a fork of a warm server."""
        return isinstance(self._process, WarmProcess)

    def ended(self) -> tuple[bool, int | None]:
        """Whether it has ended, and its exit code where that is known."""
        code = self._process.poll()
        if code is None and isinstance(self._process, WarmProcess) and self._process.lost:
            return not self._process.is_alive, None
        return code is not None, code

    def close(self) -> None:
        """Nothing of it is watched any more."""
        if isinstance(self._process, WarmProcess):
            self._process.close()


def start(
    argv: Sequence[str],
    *,
    folder: str,
    environment: Mapping[str, str],
    output: Path,
    warm: WarmSpec | None = None,
) -> Launcher:
    """Start the launcher, from a warm server where `warm` asks for it.

    Raises:
        OSError: there is no such program or folder, or the log cannot be written.
    """
    if warm is None:
        return Launcher(start_launcher(argv, folder=folder, environment=environment, output=output))
    try:
        with output.open("ab") as log:
            process = start_process(
                _server_address(warm, environment),
                argv,
                folder=folder,
                environment=environment,
                output=log.fileno(),
            )
    except (NotWarmError, HostError) as error:
        cold = start_launcher(argv, folder=folder, environment=environment, output=output)
        return Launcher(cold, why_cold=str(error))
    return Launcher(process)


def _server_address(warm: WarmSpec, environment: Mapping[str, str]) -> Path:
    """Where the server of `warm` listens. Raises HostError: the folder of sockets is not ours."""
    if "server" in warm:  # it says itself what of this environment it does not fit
        return Path(warm["server"])
    return server_kind(environment, warm["threads"], warm["modules"]).address
