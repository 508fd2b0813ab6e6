"""Makes the set-up's own modules importable, and one tiny project per file."""

import sys

import pytest

from tests.environments.tiny_project import ENVIRONMENTS, TinyProject, write_wheel

sys.path.insert(0, str(ENVIRONMENTS))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """One project, made once per file; its torch is a wheel of one line."""
    project = TinyProject(
        tmp_path_factory.mktemp("tiny") / "project", requires=['torch>=2.6; extra == "train"']
    )
    write_wheel(project.wheels, "torch", "2.13.0+cpu")
    return project
