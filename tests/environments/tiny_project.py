"""Tiny projects and tiny wheels, so that the real set-up with the real pip takes seconds, offline."""

import hashlib
import os
import subprocess
import sys
import zipfile
from base64 import urlsafe_b64encode
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENTS = ROOT / "environments"
SCRIPT = ENVIRONMENTS / "setup_venv.py"

# A build backend without dependencies; it can be told to hang, so that a kill hits pip at work.
BACKEND = """
import base64, hashlib, os, pathlib, time, zipfile

def _wheel(directory):
    hang = pathlib.Path("hang")
    while hang.exists():
        time.sleep(0.05)
    requires = "".join(
        f"Requires-Dist: {line}\\n" for line in pathlib.Path("requires.txt").read_text().splitlines()
    )
    files = {
        "tiny.pth": os.getcwd() + "\\n",
        "tiny-1.0.dist-info/METADATA": f"Metadata-Version: 2.1\\nName: tiny\\nVersion: 1.0\\n"
        + "Provides-Extra: train\\nProvides-Extra: lab\\nProvides-Extra: deepspeed\\nProvides-Extra: sweep\\n" + requires,
        "tiny-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\\nGenerator: t\\nRoot-Is-Purelib: true\\n"
        + "Tag: py3-none-any\\n",
    }
    record = "".join(f"{name},,\\n" for name in files) + "tiny-1.0.dist-info/RECORD,,\\n"
    name = "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(pathlib.Path(directory, name), "w") as wheel:
        for path, text in {**files, "tiny-1.0.dist-info/RECORD": record}.items():
            wheel.writestr(path, text)
    return name

def build_editable(directory, config_settings=None, metadata_directory=None):
    return _wheel(directory)

def build_wheel(directory, config_settings=None, metadata_directory=None):
    return _wheel(directory)
"""

# Starts its arguments in its place, with the signal that Ctrl-C sends at its default.
WITH_CTRL_C = (
    "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); "
    "os.execv(sys.argv[1], sys.argv[1:])"
)

PYPROJECT = """\
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
[project]
name = "tiny"
version = "1.0"
[project.optional-dependencies]
train = ["torch"]
lab = ["front"]
deepspeed = ["deepspeed"]
"""


def write_wheel(directory, name, version, files=None, *, prefix_files=None, requires=()):
    """A small but whole wheel, RECORD with sizes and hashes included."""
    directory.mkdir(parents=True, exist_ok=True)
    info = f"{name}-{version}.dist-info"
    everything = {
        **(files or {f"{name}/__init__.py": f"__version__ = {version!r}\n"}),
        **{f"{name}-{version}.data/data/{k}": v for k, v in (prefix_files or {}).items()},
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        + "".join(f"Requires-Dist: {line}\n" for line in requires),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = []
    for path, text in everything.items():
        digest = urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        rows.append(f"{path},sha256={digest},{len(text.encode())}\n")
    everything[f"{info}/RECORD"] = "".join(rows) + f"{info}/RECORD,,\n"
    with zipfile.ZipFile(directory / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        for path, text in everything.items():
            wheel.writestr(path, text)


class TinyProject:
    """A project in a temporary directory and the way to run the set-up on it."""

    def __init__(self, directory, *, requires=(), python=sys._base_executable):
        self.directory = directory
        self.python = python
        self.venv = directory / ".venv"
        self.wheels = directory.parent / f"{directory.name}-wheels"
        directory.mkdir(parents=True)
        self.wheels.mkdir()
        (directory / "backend.py").write_text(BACKEND)
        (directory / "pyproject.toml").write_text(PYPROJECT)
        self.require(*requires)

    def require(self, *lines):
        (self.directory / "requires.txt").write_text("\n".join(lines) + "\n")

    def touch(self):
        """A change of pyproject.toml that means nothing but must be noticed."""
        with (self.directory / "pyproject.toml").open("a") as file:
            file.write("# changed\n")

    def environment(self):
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PIP_", "WORKBENCH_"))}
        return {
            **kept,
            "HOME": str(self.wheels),
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(self.wheels),
            "PIP_CONFIG_FILE": os.devnull,
        }

    def argv(self, *options):
        return [self.python, SCRIPT, "--project", self.directory, "--extras", "train", *options]

    def start(self, *options):
        # A test run in the background inherits an ignored SIGINT; Ctrl-C must reach the script.
        return subprocess.Popen(
            [self.python, "-c", WITH_CTRL_C, *self.argv(*options)],
            env=self.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *options):
        return subprocess.run(
            self.argv(*options),
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )

    def python_says(self, program):
        """What the environment's Python prints."""
        argv = [self.venv / "bin/python", "-c", program]
        done = subprocess.run(argv, capture_output=True, text=True, check=True)
        return done.stdout.strip()
