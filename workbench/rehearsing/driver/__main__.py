"""Runs a command on a machine with GPUs that there are not.

    python -m workbench.rehearsing.driver --gpu h100-sxm --count 8 -- COMMAND …

Whatever the command starts sees idle GPUs through the simulated NVML: `workbench doctor`, the
preflight of a launch, samplers. A rehearsal for the same GPUs shows its own on them. No program
computes on them: they are there to be looked at.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from workbench.describe import catalog
from workbench.errors import UsageError, WorkbenchError
from workbench.rehearsing.driver.library import environment
from workbench.rehearsing.driver.pod import MOST_CARDS, POD, PROFILES, SIMULATED, Pod, pod_name


def main() -> None:
    """Put the GPUs in place and become the command."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--gpu", default="h100-sxm", help=f"{', '.join(PROFILES)}")
    parser.add_argument("--count", type=int, default=8, help=f"1 to {MOST_CARDS}")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND")
    options = parser.parse_args()
    words: list[str] = options.command  # the first -- is ours, others are the command's own
    command = words[words[:1] == ["--"] :] or [os.environ.get("SHELL", "sh")]
    try:
        _become(command, options.gpu, options.count)
    except WorkbenchError as error:
        sys.exit(f"error: {error}")


def _become(command: list[str], gpu: str, count: int) -> None:
    identifier = catalog.gpu(gpu).id
    if identifier not in PROFILES or not 1 <= count <= MOST_CARDS:
        raise UsageError(
            f"{count} x {gpu} cannot be shown. Give 1 to {MOST_CARDS} of: {', '.join(PROFILES)}."
        )
    folder = Path(tempfile.mkdtemp(prefix="workbench-pod-"))
    clock = folder / "clock"
    clock.write_text("0", encoding="ascii")
    timeline = Pod(identifier, count, driver=SIMULATED).write(folder / "timeline")
    os.environ.update(environment(timeline, clock))
    os.environ[POD] = pod_name(identifier, count)
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    os.execvp(command[0], command)  # noqa: S606  (the command is the user's own)


if __name__ == "__main__":
    main()
