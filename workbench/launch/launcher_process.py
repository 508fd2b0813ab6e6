"""Starts ``accelerate launch``: what it inherits, where its output goes, a session of its own."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

# What another launcher around us (Slurm, Kubeflow, a run of ours) says of its own ranks.
_FOREIGN = frozenset(
    {
        *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK"),
        *("MASTER_ADDR", "MASTER_PORT", "WORKBENCH_RANK_PID", "TORCHELASTIC_RUN_ID"),
    }
)


def inherited() -> dict[str, str]:
    """This process's environment, without what it says of somebody else's ranks."""
    return {key: value for key, value in os.environ.items() if key not in _FOREIGN}


def shown_gpus(
    environment: Mapping[str, str], *, device: str, ranks: int, script: Path
) -> dict[str, str]:
    """The environment with the GPUs that the ranks are to see: a lone one the first of them.

    A script that cannot be read is left to the launcher, which says so.
    """
    if device != "cuda" or ranks != 1:
        return dict(environment)
    from workbench.launch.targets import takes_all_gpus  # noqa: PLC0415  (a lone rank's affair)

    try:
        if takes_all_gpus(script):
            return dict(environment)
    except (OSError, SyntaxError):
        return dict(environment)
    seen = environment.get("CUDA_VISIBLE_DEVICES") or "0"
    return {**environment, "CUDA_VISIBLE_DEVICES": seen.partition(",")[0].strip()}


def start_launcher(
    argv: Sequence[str], *, folder: str, environment: Mapping[str, str], output: Path
) -> subprocess.Popen[bytes]:
    """Start it; `output` is appended to.

    Raises:
        OSError: there is no such program or folder, or the log cannot be written.
    """
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
