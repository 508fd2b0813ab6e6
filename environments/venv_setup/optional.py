"""Extras that may fail: the set-up goes on without them and says what will be missing."""

from __future__ import annotations

import subprocess
import time
from dataclasses import dataclass, field

from venv_setup import packages
from venv_setup import state as states
from venv_setup.console import say
from venv_setup.errors import SetupError
from venv_setup.install import Job

RETRY_SECONDS = 3600
"""A failed one is tried again after this long; sooner would cost each `make` the time of a pip."""


@dataclass(frozen=True)
class OptionalExtra:
    """How an extra is installed that the workbench can do without."""

    without: str
    """What the user does not have when it is missing."""
    environment: dict[str, str] = field(default_factory=dict)
    """For pip and the build that it starts."""


EXTRAS = {
    # Pure Python without its CUDA operators, which DeepSpeed builds when one is first used. Its
    # package is a source archive: a build can fail where an installation of wheels does not.
    "deepspeed": OptionalExtra(
        without="strategies zero1, zero2 and zero3, the recipe deepspeed_pipeline and parts of "
        "notebooks 06 and 09",
        environment={"DS_BUILD_OPS": "0"},
    ),
    "sweep": OptionalExtra(without="workbench sweep, the widget Sweep and notebook 15"),
}


def required(extras: tuple[str, ...]) -> tuple[str, ...]:
    """Those without which the set-up fails."""
    return tuple(name for name in extras if name not in EXTRAS)


def waits(state: states.State, extra: str, now: float) -> bool:
    """Whether it failed so recently that it is not tried again."""
    failure = state.missing.get(extra)
    return failure is not None and 0 <= now - float(failure["at"]) < RETRY_SECONDS


def install(job: Job) -> None:
    """Stage "optional": each on its own, after the project, under the pinned torch."""
    chosen = [name for name in job.extras if name in EXTRAS]
    with states.stage(job.venv, job.state, "optional"):
        job.state.missing = {}
        for name in chosen:
            try:
                _install_one(job, name)
            except (SetupError, subprocess.CalledProcessError) as error:
                job.state.missing[name] = {"at": time.time(), "why": _first_line(str(error))}
                say(f"  {error}")
        job.state.extras = [name for name in job.extras if name not in job.state.missing]


def _install_one(job: Job, name: str) -> None:
    wanted = packages.requirements_of(job.python, job.project_name, name)
    if wanted:
        job.pip(
            *wanted,
            "--constraint",
            str(job.constraints),
            what=f"installing {name}",
            environment=EXTRAS[name].environment,
        )


def _first_line(text: str) -> str:
    return (text.splitlines() or [""])[0]


def missing_lines(state: states.State) -> list[str]:
    """One line for each that is missing: what does not work, and what to do."""
    return [
        f"Without {name}: {EXTRAS[name].without} will not work here. "
        f"Next: see {states.LOG_NAME} in the environment, mend the cause, then: "
        f"python3 environments/setup_venv.py --retry"
        for name in state.missing
        if name in EXTRAS
    ]
