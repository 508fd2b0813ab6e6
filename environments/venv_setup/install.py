"""The stages: make the environment, torch first, then the project, then check that it holds."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from venv_setup import probe, repair
from venv_setup import state as states
from venv_setup.choice import TorchChoice
from venv_setup.console import Runner, say
from venv_setup.errors import SetupError

# Packages whose other half is static files below the prefix of the Python that serves them. Found
# only in the system's packages, JupyterLab started from the environment would not see that half.
_FRONT_ENDS = ("jupyterlab", "jupyterlab_widgets", "anywidget", "plotly")

_OUTSIDE = """
import importlib.metadata, json, sys
found = {}
for name in sys.argv[1:]:
    try:
        dist = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        continue
    if not str(dist.locate_file("")).startswith(sys.prefix):
        found[name] = dist.version
print(json.dumps(found))
"""


@dataclass(frozen=True)
class Job:
    """One set-up under way."""

    project: Path
    """The directory with pyproject.toml."""
    venv: Path
    """Where the environment is."""
    state: states.State
    """Its record; written through states.stage()."""
    choice: TorchChoice
    """Which torch."""
    extras: tuple[str, ...]
    """Extras of the project."""
    project_name: str
    """The project's name as a distribution."""
    runner: Runner
    """Runs the commands."""

    @property
    def python(self) -> str:
        """The environment's Python."""
        return str(repair.python_of(self.venv))

    @property
    def constraints(self) -> Path:
        """The file that pins torch while everything else is installed."""
        return self.venv / "constraints.txt"

    def pip(self, *arguments: str, what: str, environment: dict[str, str] | None = None) -> None:
        """Runs the environment's pip."""
        argv = [self.python, "-m", "pip", "install", "--progress-bar", "off", *arguments]
        self.runner.run(argv, what, environment=environment)


def make_environment(job: Job) -> None:
    """Stage "venv": an empty environment; what was there before is deleted."""
    with states.stage(job.venv, job.state, "venv"):
        repair.empty(job.venv, keep=(states.FILE_NAME, job.runner.log.name))
        options = ["--system-site-packages"] if job.choice.kind == "system" else []
        argv = [sys.executable, "-m", environment_maker(), *options, str(job.venv)]
        job.runner.run(argv, "making the environment")
        if job.choice.kind == "system":
            _bridge_to_system_torch(job)


def environment_maker() -> str:
    """The module that makes environments with pip in them.

    Raises:
        SetupError: this Python has neither; Debian splits them off.
    """
    if importlib.util.find_spec("venv") and importlib.util.find_spec("ensurepip"):
        return "venv"
    if importlib.util.find_spec("virtualenv"):
        return "virtualenv"
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    raise SetupError(
        f"Python {version} ({sys.executable}) cannot make virtual environments: it has neither "
        "ensurepip nor virtualenv.",
        f"Debian, Ubuntu: apt-get install python{version}-venv (as root). Elsewhere: "
        "python3 -m pip install --user virtualenv. Then run the same command again.",
    )


def _bridge_to_system_torch(job: Job) -> None:
    """Where the "system's" Python is itself an environment, --system-site-packages skips it.

    Some pods keep torch in a virtual environment of their own; one .pth line lets ours see it.
    """
    if probe.locate_torch(job.python)[1] == job.choice.file:
        return
    site = next(job.venv.glob("lib/python3*/site-packages"))
    packages = Path(str(job.choice.file)).parent.parent
    (site / "_system_torch.pth").write_text(f"{packages}\n", "utf-8")


def install_torch(job: Job) -> None:
    """Stage "torch": the chosen build, before anything can ask for another; then pins it."""
    with states.stage(job.venv, job.state, "torch"):
        version = job.choice.version
        if job.choice.kind == "own":
            version = _own_torch(job)
        pinned = f"torch=={version}\n" if version else ""
        job.constraints.write_text(pinned, "utf-8")
        job.state.torch = {**asdict(job.choice), "installed": version}


def _own_torch(job: Job) -> str | None:
    before, file = probe.locate_torch(job.python)
    is_ours = bool(file) and Path(str(file)).is_relative_to(job.venv)
    asked_before = job.state.torch.get("requirement")
    if before and is_ours and asked_before in (None, job.choice.requirement):
        say(f"  torch {before} is already in the environment and stays")
        return before
    index = job.state.machine.get("index")
    # By environment variable: an address may carry a password, and argv can be read by anyone.
    environment = {"PIP_INDEX_URL": index} if index else None
    what = f"installing {job.choice.requirement}"
    job.pip(str(job.choice.requirement), what=what, environment=environment)
    version = probe.locate_torch(job.python)[0]
    say(f"  torch {version} is installed")
    return version


def reinstall(job: Job, damaged: Sequence[str]) -> None:
    """Brings back "name==version" as they were; torch and the project have stages of their own.

    What cannot be had any more is left to those stages, which take any version that fits.
    """
    own = {"torch", job.project_name.lower().replace("-", "_")}
    wanted = [line for line in damaged if line.partition("==")[0].lower() not in own]
    if not wanted:
        return
    try:
        job.pip("--no-deps", "--ignore-installed", *wanted, what="installing them again")
    except SetupError as error:
        say(f"  {str(error).splitlines()[0]}")


def install_project(job: Job, extras: Sequence[str]) -> None:
    """Stage "project": the project, editable, with these extras, under the pinned torch."""
    with states.stage(job.venv, job.state, "project"):
        bracket = f"[{','.join(extras)}]" if extras else ""
        pinned = ["--constraint", str(job.constraints)]
        what = f"installing the project with {', '.join(extras) or 'no extras'}"
        try:
            job.pip("--editable", f"{job.project}{bracket}", *pinned, what=what)
        except SetupError as error:
            if job.choice.kind == "system" and "torch" in str(error):
                raise _torch_conflict(job, error) from error
            raise
        if job.choice.kind == "system":
            _own_front_ends(job, pinned)
        job.state.extras = list(extras)


def _torch_conflict(job: Job, error: SetupError) -> SetupError:
    problem = str(error).partition("\nNext: ")[0]
    return SetupError(
        f"{problem}\nThe system's torch {job.choice.version} is kept and nothing may replace it.",
        "If pyproject.toml asks for another torch than that: take an image with a newer torch, or "
        f"install a second one here (gigabytes): --torch own.\nThe whole log: {job.runner.log}",
    )


def _own_front_ends(job: Job, pinned: list[str]) -> None:
    argv = [job.python, "-c", _OUTSIDE, *_FRONT_ENDS]
    outside = json.loads(subprocess.run(argv, capture_output=True, text=True, check=True).stdout)
    if outside:
        exact = [f"{name}=={version}" for name, version in outside.items()]
        options = ("--ignore-installed", "--no-deps")
        job.pip(
            *options, *exact, *pinned, what="installing the front-end halves of Jupyter's parts"
        )


def verify(job: Job) -> None:
    """Stage "verify": the torch that the environment imports is the one that was chosen."""
    with states.stage(job.venv, job.state, "verify"):
        version, file = probe.locate_torch(job.python)
        if job.choice.kind == "system" and file != job.choice.file:
            raise SetupError(
                f"The environment's torch is {version} ({file}), it must be the system's "
                f"{job.choice.version} ({job.choice.file}).",
                "Something installed another one. Run again with --rebuild.",
            )
        if job.choice.kind == "own" and version is None:
            raise SetupError(
                f"pip reported success for {job.choice.requirement}, but there is no torch.",
                f"Read {job.runner.log}, then run again with --rebuild.",
            )
    job.state.complete = True
    states.save(job.venv, job.state)
