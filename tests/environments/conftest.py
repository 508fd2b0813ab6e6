"""Makes the set-up's own modules importable, and one tiny project per file."""

import shutil
import subprocess
import sys

import pytest

from tests.environments.pod_place import PYTHON
from tests.environments.tiny_project import ENVIRONMENTS, SCRIPT, TinyProject, write_wheel

sys.path.insert(0, str(ENVIRONMENTS))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """One project, made once per file; its torch is a wheel of one line."""
    project = TinyProject(
        tmp_path_factory.mktemp("tiny") / "project", requires=['torch>=2.6; extra == "train"']
    )
    write_wheel(project.wheels, "torch", "2.13.0+cpu")
    return project


@pytest.fixture(scope="session")
def real_wheelhouse(tmp_path_factory):
    """The wheels of this very project, torch among them, for the system's Python."""
    folder = tmp_path_factory.mktemp("house") / "wheels"
    command = [PYTHON, SCRIPT, "--make-wheelhouse", folder, "--extras", "train,lab"]
    done = subprocess.run([*command, "--torch", "own"], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no package index gives this project's wheels here: {done.stderr[-600:]}")
    yield folder
    shutil.rmtree(folder)
