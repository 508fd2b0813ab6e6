"""Other engines' own libraries, each in a virtual environment of its own, beside the user's.

    python -m tests.engines.validators      # builds what is missing, with a line for each

They pin old versions of what the workbench uses, so they are only ever started as processes: a
program goes in, one JSON value on stdin, one on the last line of stdout.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import venv
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(sys.prefix) / "engines"
PINS = {
    "kubeflow": ("kubeflow_trainer_api==2.3.0",),
    "dstack": ("dstack==0.22.5",),
    "skypilot": ("skypilot==0.14.1",),
}
_HEAD = "import json, sys\nasked = json.load(sys.stdin)\n"


def build(name: str) -> None:
    """Make the environment `name`, unless it is there with these pins."""
    if missing(name) is None:
        return
    folder = FOLDER / name
    venv.create(folder, clear=True, with_pip=False, symlinks=True)
    install = [
        *(sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "install"),
        *("--quiet", "--no-compile", "--disable-pip-version-check", *PINS[name]),
    ]
    subprocess.run(install, check=True)
    (folder / "pins.json").write_text(json.dumps(PINS[name]), encoding="utf-8")


def missing(name: str) -> str | None:
    """Why the environment cannot be used; None = it can."""
    path = FOLDER / name / "pins.json"
    if not path.is_file() or tuple(json.loads(path.read_text("utf-8"))) != PINS[name]:
        return f"{PINS[name][0]} is not installed: python -m tests.engines.validators"
    return None


def require(name: str) -> None:
    """Skip the test where the environment is not built."""
    why = missing(name)
    if why is not None:
        pytest.skip(why)


def ask(name: str, program: str, asked: Any, home: Path, *, timeout: float = 240) -> Any:
    """What `program` prints last for `asked`, in the environment `name` with a scratch home."""
    environment = {"HOME": str(home), "PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": ""}
    environment |= {"SKYPILOT_DISABLE_USAGE_COLLECTION": "1", "DSTACK_DO_NOT_UPDATE_DEFAULT": "1"}
    done = subprocess.run(
        [str(FOLDER / name / "bin" / "python"), "-c", _HEAD + program],
        input=json.dumps(asked),
        env=environment,
        cwd=home,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


def main() -> None:
    """Build all of them and say how long each took."""
    for name, pins in PINS.items():
        since = time.monotonic()
        print(f"{name}: {', '.join(pins)} …", flush=True)
        build(name)
        print(f"{name}: ready after {time.monotonic() - since:.0f} s", flush=True)


if __name__ == "__main__":
    main()
