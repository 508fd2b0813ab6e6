"""A pod without a package index: wheels gathered where there is one, installed from there alone."""

import json
import shutil
import subprocess
import sys

import pytest

from tests.environments.tiny_project import TinyProject, write_wheel

pytestmark = [pytest.mark.slow, pytest.mark.full]
WANTS = ['torch>=2.6; extra == "train"', 'helper; extra == "train"', 'front; extra == "lab"']


@pytest.fixture(scope="module")
def gathered(tmp_path_factory):
    """A project whose index has two helpers more than it asks for; and its wheelhouse."""
    project = TinyProject(tmp_path_factory.mktemp("wheelhouse") / "project", requires=WANTS)
    write_wheel(project.wheels, "torch", "2.13.0+cpu", requires=["of_torch"])
    write_wheel(project.wheels, "of_torch", "1.0")
    write_wheel(project.wheels, "helper", "2.0", requires=["shared", 'other; extra == "none"'])
    write_wheel(project.wheels, "shared", "3.0")
    write_wheel(project.wheels, "front", "4.0")
    folder = project.directory.parent / "house"
    done = project.run("--make-wheelhouse", folder)
    assert done.returncode == 0, done.stdout + done.stderr
    project.house, project.said = folder, done.stdout
    return project


@pytest.fixture
def offline(gathered, tmp_path):
    """The project on another machine, where no index and no other wheel is to be found."""
    project = TinyProject(tmp_path / "pod", requires=WANTS)
    shutil.copytree(gathered.house, tmp_path / "wheelhouse")
    project.house = tmp_path / "wheelhouse"
    return project


def names(folder):
    return {path.name.partition("-")[0] for path in folder.glob("*.whl")}


def test_it_has_what_the_extras_need_and_not_what_torch_alone_needs(gathered):
    assert names(gathered.house) == {"helper", "shared"}
    record = json.loads((gathered.house / "wheelhouse.json").read_text())
    assert (record["extras"], record["torch"]) == (["train"], False)
    assert "2 wheels" in gathered.said
    assert "without torch" in gathered.said
    assert not gathered.venv.exists()


def test_a_machine_without_a_torch_is_told(offline):
    done = offline.run("--wheelhouse", offline.house)
    assert done.returncode == 1
    assert "has no torch" in done.stderr
    assert "WHEELHOUSE_ARGS='--torch own'" in done.stderr


def test_the_torch_of_the_pod_is_used_and_the_rest_comes_from_the_wheels(offline, tmp_path):
    system = tmp_path / "system"
    subprocess.run([sys._base_executable, "-m", "venv", system], check=True)
    site = next(system.glob("lib/python3*/site-packages"))
    hip = "class version:\n    cuda = '12.8'\n    hip = None\n__version__ = '2.11.0'\n"
    write_wheel(tmp_path, "torch", "2.11.0", {"torch/__init__.py": hip})
    shutil.unpack_archive(tmp_path / "torch-2.11.0-py3-none-any.whl", site, "zip")
    offline.python = system / "bin" / "python"
    done = offline.run("--wheelhouse", offline.house)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the system's own 2.11.0" in done.stdout
    says = "import torch, helper, shared; print(torch.__version__, helper.__version__)"
    assert offline.python_says(says) == "2.11.0 2.0"
    assert "is ready" in offline.run("--wheelhouse", offline.house).stdout


def test_torch_can_be_gathered_too(gathered, offline):
    shutil.rmtree(offline.house)
    made = gathered.run("--make-wheelhouse", offline.house, "--torch", "own")
    assert made.returncode == 0, made.stdout + made.stderr
    assert names(offline.house) == {"helper", "shared", "torch", "of_torch"}
    environment = {**offline.environment(), "WORKBENCH_WHEELHOUSE": str(offline.house)}
    done = subprocess.run(
        offline.argv(), env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert offline.python_says("import torch; print(torch.__version__)") == "2.13.0+cpu"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"python": "3.8"}, "made for another machine (python 3.8 instead of"),
        ({"python_patch": 99}, ".99 or newer; this is 3."),
        ({"extras": ["lab"]}, "no wheels for the extras train"),
        (None, "cannot be read"),
    ],
)
def test_one_that_does_not_fit_is_refused(offline, change, says):
    record = offline.house / "wheelhouse.json"
    known = json.loads(record.read_text())
    record.write_text(json.dumps({**known, **change}) if change else "[")
    done = offline.run("--wheelhouse", offline.house)
    assert done.returncode == 1
    assert says in done.stderr
    assert "Next: " in done.stderr
    assert not (offline.venv / "bin").exists()
