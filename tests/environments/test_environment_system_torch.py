"""A GPU pod, played by a bare environment with a torch 2.11.0+cu130 of two lines: it must stay.

A torch 2.13.0 lies ready for pip to take, as on the real index.
"""

import subprocess
import sys

import pytest

from tests.environments.tiny_project import TinyProject, write_wheel

pytestmark = [pytest.mark.slow, pytest.mark.full]

WHERE = "import torch; print(torch.__version__, torch.__file__)"


@pytest.fixture(scope="module")
def pod(tmp_path_factory):
    """The project on the pod, set up once."""
    home = tmp_path_factory.mktemp("pod")
    argv = [sys._base_executable, "-m", "venv", "--without-pip", home / "system"]
    subprocess.run(argv, check=True)
    site = next(home.glob("system/lib/python3*/site-packages"))
    (site / "torch").mkdir()
    (site / "torch/__init__.py").write_text(
        "from torch import version\n__version__ = '2.11.0+cu130'\n"
    )
    (site / "torch/version.py").write_text("cuda = '13.0'\nhip = None\n")
    info = site / "torch-2.11.0+cu130.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.11.0+cu130\n")
    (info / "RECORD").write_text("torch/__init__.py,,\n")
    (info / "INSTALLER").write_text("pip\n")
    project = TinyProject(
        home / "project",
        requires=['torch>=2.6; extra == "train"', 'anywidget; extra == "train"'],
        python=home / "system/bin/python",
    )
    write_wheel(project.wheels, "torch", "2.13.0")
    # The pod has anywidget, too; the environment needs its front-end half below its own prefix.
    write_wheel(
        project.wheels,
        "anywidget",
        "0.9.18",
        prefix_files={"share/jupyter/labextensions/anywidget/x.js": "1"},
    )
    info = site / "anywidget-0.9.18.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: anywidget\nVersion: 0.9.18\n")
    project.torch = str(site / "torch/__init__.py")
    done = project.run()
    assert done.returncode == 0, done.stdout + done.stderr
    project.first = done.stdout
    return project


def pip(project, *arguments):
    argv = [project.venv / "bin/python", "-m", "pip", "install", "--dry-run", *arguments]
    return subprocess.run(
        argv, env=project.environment(), capture_output=True, text=True, timeout=200, check=False
    )


def test_the_systems_torch_is_used_in_place(pod):
    assert "torch: the system's own 2.11.0+cu130 (built for CUDA 13.0" in pod.first
    assert pod.python_says(WHERE) == f"2.11.0+cu130 {pod.torch}"
    assert (pod.venv / "constraints.txt").read_text() == "torch==2.11.0+cu130\n"
    assert "include-system-site-packages = true" in (pod.venv / "pyvenv.cfg").read_text()


def test_without_the_constraint_pip_would_put_another_torch_in_front(pod):
    done = pip(pod, "torch>=2.12")
    assert "Would install torch-2.13.0" in done.stdout


def test_with_the_constraint_it_is_an_error(pod):
    done = pip(pod, "torch>=2.12", "--constraint", pod.venv / "constraints.txt")
    assert done.returncode != 0
    assert "torch==2.11.0+cu130" in done.stdout + done.stderr


def test_a_project_that_wants_a_newer_torch_is_told_so(pod):
    pod.touch()
    pod.require('torch>=2.12; extra == "train"')
    done = pod.run()
    assert done.returncode == 1
    assert "The system's torch 2.11.0+cu130 is kept and nothing may replace it." in done.stderr
    assert "--torch own" in done.stderr
    assert pod.python_says(WHERE) == f"2.11.0+cu130 {pod.torch}"
    pod.require('torch>=2.6; extra == "train"')
    assert pod.run().returncode == 0
    assert "is ready" in pod.run().stdout


def test_a_torch_slipped_in_front_is_noticed(pod):
    slipped = next(pod.venv.glob("lib/python3*/site-packages")) / "torch"
    slipped.mkdir()
    (slipped / "__init__.py").write_text("")
    pod.touch()
    done = pod.run()
    (slipped / "__init__.py").unlink()
    slipped.rmdir()
    assert done.returncode == 1
    assert f"it must be the system's 2.11.0+cu130 ({pod.torch})" in done.stderr
    assert pod.run().returncode == 0


def test_front_end_halves_are_the_environments_own(pod):
    assert (pod.venv / "share/jupyter/labextensions/anywidget/x.js").exists()
