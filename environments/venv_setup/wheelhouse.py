"""Wheels for a machine without a package index: gathered where there is one, installed from there.

What is gathered is what pip would install here for the project with these extras; source archives
are built. It fits machines with the same Python version and platform, which wheelhouse.json names.
A pod's own torch is left out, with what only torch asks for: gigabytes that nobody would install.
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from venv_setup import install, optional
from venv_setup.choice import INDEX_VARIABLE, TORCH_EXTRA, TORCH_VERSION
from venv_setup.console import Runner, say
from venv_setup.errors import SetupError

VARIABLE = "WORKBENCH_WHEELHOUSE"
"""Environment variable naming the folder to install from; --wheelhouse goes first."""
RECORD = "wheelhouse.json"
_TORCH = "torch"

# Which of the packages that a resolution found are needed when some are left out. Run by the
# environment's Python: pip brings the library that reads requirements.
_NEEDED = """
import json, sys
from pip._vendor.packaging.requirements import Requirement
from pip._vendor.packaging.utils import canonicalize_name
found, left_out, wanted = json.load(sys.stdin)
requires = {canonicalize_name(name): lines for name, lines in found.items()}
seen, open_ = {}, [Requirement(line) for line in wanted]
while open_:
    one = open_.pop()
    name = canonicalize_name(one.name)
    extras = set(one.extras)
    if name in left_out or (name in seen and extras <= seen[name]):
        continue
    seen[name] = seen.get(name, set()) | extras
    for line in requires.get(name, ()):
        inner = Requirement(line)
        chosen = [""] + sorted(seen[name])
        if not inner.marker or any(inner.marker.evaluate({"extra": extra}) for extra in chosen):
            open_.append(inner)
print(json.dumps(sorted(seen)))
"""

_LEAST_PATCH = """
import json, sys
from pip._vendor.packaging.specifiers import SpecifierSet
(major, minor, patch), specifiers = json.load(sys.stdin)
sets = [SpecifierSet(one) for one in specifiers]
fit = lambda number: all(one.contains(f"{major}.{minor}.{number}") for one in sets)
print(next(number for number in range(patch + 1) if fit(number) or number == patch))
"""

_ASK_BACKEND = """
import importlib, json, os, sys
sys.path[:0] = map(os.path.abspath, sys.argv[2:])
module, _, names = sys.argv[1].partition(":")
backend = importlib.import_module(module)
for name in filter(None, names.split(".")):
    backend = getattr(backend, name)
print(json.dumps(list(getattr(backend, "get_requires_for_build_editable", list)())))
"""


def make(
    project: Path, folder: Path, project_name: str, extras: Sequence[str], *, torch: bool
) -> None:
    """Gathers the wheels for the project with `extras` in `folder`; `torch`: its own, too.

    Raises:
        SetupError: pip could not find, load or build one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="wheelhouse-") as place:
        venv, runner = Path(place) / "venv", Runner(folder)
        argv = [sys.executable, "-m", install.environment_maker(), str(venv)]
        runner.run(argv, "making an environment to ask from")
        python = str(venv / "bin" / "python")
        bracket = f"[{','.join(extras)}]" if extras else ""
        resolved = _resolved(
            runner, python, f"{project}{bracket}", extras, Path(place) / "report.json"
        )
        own = _canonical(project_name)
        lines = {name: about["requires"] for name, about in resolved.items()}
        left_out = [] if torch else [_TORCH]
        names = _needed(python, lines, left_out, f"{project_name}{bracket}")
        pinned = [f"{name}=={resolved[name]['version']}" for name in names if name != own]
        _wheels(runner, python, folder, ["--no-deps", *pinned], f"gathering {len(pinned)} wheels")
        needed = _build_section(project, "requires")
        if needed:
            _wheels(runner, python, folder, needed, "gathering what builds the project")
            needed = _backends_own(runner, python, folder, project, needed)
        if needed:
            _wheels(runner, python, folder, needed, "gathering what its build asks for")
        least = _least_patch(python, [resolved[name]["python"] for name in names])
    record = {**_machine(), "extras": list(extras), "torch": torch and _TORCH in names}
    record["python_patch"] = least
    (folder / RECORD).write_text(json.dumps(record, indent=2) + "\n", "utf-8")
    wheels = list(folder.glob("*.whl"))
    size = sum(path.stat().st_size for path in wheels) / 2**20
    say(f"{folder}: {len(wheels)} wheels, {size:.0f} MiB" + ("" if torch else ", without torch"))
    say(f"On the pod: python3 environments/setup_venv.py --wheelhouse {folder.name}")


def _resolved(
    runner: Runner, python: str, target: str, extras: Sequence[str], report: Path
) -> dict[str, dict[str, Any]]:
    """Name -> version and requirements of all that pip would install; hardly anything is loaded."""
    options = ["--dry-run", "--ignore-installed", "--quiet", "--report", str(report)]
    torch = [f"{_TORCH}=={TORCH_VERSION}"] if TORCH_EXTRA in extras else []
    argv = [python, "-m", "pip", "install", *options, target, *torch]
    runner.run(argv, "asking which packages are needed", environment=_environment())
    rows = json.loads(report.read_text("utf-8"))["install"]
    return {
        _canonical(row["metadata"]["name"]): {
            "version": row["metadata"]["version"],
            "requires": row["metadata"].get("requires_dist") or [],
            "python": row["metadata"].get("requires_python") or "",
        }
        for row in rows
    }


def _needed(
    python: str, resolved: Mapping[str, Sequence[str]], left_out: Sequence[str], target: str
) -> list[str]:
    question = json.dumps([resolved, left_out, [target]])
    argv = [python, "-c", _NEEDED]
    done = subprocess.run(argv, input=question, capture_output=True, text=True, check=True)
    return [name for name in json.loads(done.stdout) if name in resolved]


def _least_patch(python: str, specifiers: Sequence[str]) -> int:
    """The oldest patch release of this Python that all the packages take."""
    question = json.dumps([sys.version_info[:3], specifiers])
    argv = [python, "-c", _LEAST_PATCH]
    done = subprocess.run(argv, input=question, capture_output=True, text=True, check=True)
    return int(done.stdout)


def _wheels(runner: Runner, python: str, folder: Path, wanted: Sequence[str], what: str) -> None:
    argv = [python, "-m", "pip", "wheel", "--progress-bar", "off", "--wheel-dir", str(folder)]
    runner.run([*argv, *wanted], what, environment=_environment())


def _environment() -> dict[str, str]:
    """For pip and the builds that it starts: torch's own index beside the usual one."""
    variables = {"PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    for extra in optional.EXTRAS.values():
        variables |= extra.environment
    index = os.environ.get(INDEX_VARIABLE)
    return {**variables, **({"PIP_EXTRA_INDEX_URL": index} if index else {})}


def _build_section(project: Path, name: str) -> list[str]:
    """The words of an entry of ``[build-system]``, a list or a single one."""
    text = (project / "pyproject.toml").read_text("utf-8")
    section = text.partition("[build-system]")[2].partition("\n[")[0]
    listed = re.search(rf"^{name}\s*=\s*(\[.*?\]|.*?$)", section, re.MULTILINE | re.DOTALL)
    return re.findall(r"[\"']([^\"']+)[\"']", listed[1]) if listed else []


def _backends_own(
    runner: Runner, python: str, folder: Path, project: Path, requires: Sequence[str]
) -> list[str]:
    """What the build backend asks for beyond `requires`, for an installation in place (PEP 660)."""
    argv = [python, "-m", "pip", "install", "--no-index", "--find-links", str(folder)]
    runner.run([*argv, *requires], "asking the build for more", environment=_environment())
    (backend,) = _build_section(project, "build-backend") or ["setuptools.build_meta"]
    argv = [python, "-c", _ASK_BACKEND, backend, *_build_section(project, "backend-path")]
    done = subprocess.run(argv, cwd=project, capture_output=True, text=True, check=True)
    return list(json.loads(done.stdout.splitlines()[-1]))


def use(folder: Path, extras: Sequence[str]) -> None:
    """Has every pip of this process install from `folder` alone.

    Raises:
        SetupError: it is no wheelhouse, or one for another machine or fewer extras.
    """
    record = _read(folder)
    here = _machine()
    other = [name for name in here if record.get(name) != here[name]]
    if other:
        says = ", ".join(f"{name} {record.get(name)} instead of {here[name]}" for name in other)
        raise SetupError(
            f"--wheelhouse {folder}: it was made for another machine ({says}).",
            "Make one with the same Python and platform as here: make wheelhouse PYTHON=python3.N",
        )
    patch = record.get("python_patch", 0)
    if sys.version_info[2] < patch:
        minor = here["python"]
        raise SetupError(
            f"--wheelhouse {folder}: its wheels need Python {minor}.{patch} or newer; this is "
            f"{minor}.{sys.version_info[2]}.",
            "Gather them with the same Python as here, or name a newer one: "
            "PYTHON=/path/to/python3",
        )
    lacks = [name for name in extras if name not in record.get("extras", [])]
    if lacks:
        raise SetupError(
            f"--wheelhouse {folder}: it has no wheels for the extras {', '.join(lacks)}.",
            f"Ask for what it has: --extras {','.join(record.get('extras', []))}",
        )
    os.environ.update(PIP_NO_INDEX="1", PIP_FIND_LINKS=str(folder.resolve()))
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", INDEX_VARIABLE):
        os.environ.pop(name, None)


def check_torch(folder: Path, kind: str) -> None:
    """Refuses to look for a torch that is not there.

    Raises:
        SetupError: one of its own is to be installed, and the wheelhouse has none.
    """
    if kind == "own" and not _read(folder).get("torch"):
        raise SetupError(
            f"--wheelhouse {folder}: it has no torch, and the system's Python has none that is "
            "built for a GPU.",
            "Name the Python that has it (make venv PYTHON=…), take a CPU build with --torch "
            "system, or gather torch too: make wheelhouse WHEELHOUSE_ARGS='--torch own'",
        )


def _read(folder: Path) -> dict[str, Any]:
    try:
        return dict(json.loads((folder / RECORD).read_text("utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise SetupError(
            f"--wheelhouse {folder}: {RECORD} in it cannot be read ({error}).",
            "Make one where there is a package index: make wheelhouse",
        ) from error


def _machine() -> dict[str, str]:
    return {
        "python": f"{sys.version_info[0]}.{sys.version_info[1]}",
        "platform": f"{platform.system()} {platform.machine()}",
    }


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
