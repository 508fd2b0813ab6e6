"""Each notebook needs only what `make lab` installs: its imports, and what its launches start."""

import ast
import json
import os
import subprocess
import sys

import pytest

from tests import user_environment
from workbench.describe import Strategy
from workbench.describe.supported import backend
from workbench.errors import WorkbenchError

NOTEBOOKS = sorted((user_environment.ROOT / "notebooks").glob("*.ipynb"))
OURS = {"workbench", "workbench_widgets"}
BESIDE = {
    path.stem
    for folder in ("notebooks", "workbench/recipes")
    for path in (user_environment.ROOT / folder).glob("*.py")
}


def code(notebook):
    cells = json.loads(notebook.read_text("utf-8"))["cells"]
    text = "\n".join("".join(c["source"]) + "\n" for c in cells if c["cell_type"] == "code")
    lines = ("" if line.lstrip().startswith(("%", "!")) else line for line in text.split("\n"))
    return ast.parse("\n".join(lines))


def imported(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module.partition(".")[0]


def backends(tree):
    """What runs each strategy that a string of the notebook names."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.strip():
            try:
                strategy = Strategy.parse(node.value, 2)
            except (WorkbenchError, ValueError):
                continue
            yield backend(strategy, ())


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_its_imports_are_there(notebook):
    has = user_environment.provided()
    names = set(imported(code(notebook))) - OURS - BESIDE - set(sys.stdlib_module_names)
    assert sorted(name for name in names if not has.get(name)) == []


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_what_its_launches_need_is_there(notebook):
    needed = {"deepspeed"} & set(backends(code(notebook)))
    assert needed <= user_environment.distributions()


def test_some_notebook_needs_deepspeed():
    assert any("deepspeed" in set(backends(code(notebook))) for notebook in NOTEBOOKS)


def test_other_extras_are_not_the_users():
    """Else the two tests above would hold whatever the default was."""
    users = user_environment.distributions()
    assert {"torch", "jupyterlab", "deepspeed", "plotly"} <= users
    assert not {"keras", "wandb", "pyarrow", "hypothesis", "bitsandbytes"} & users
    assert "deepspeed" not in user_environment.distributions(("train", "lab"))


def test_a_process_with_the_users_packages(tmp_path):
    """How the notebooks' kernels run in the tests: the rest is neither importable nor listed."""
    program = (
        "import importlib.metadata as m, importlib.util as u;"
        "names = {d.metadata['Name'] for d in m.distributions()};"
        "print([u.find_spec(n) is not None for n in ('pytest', 'deepspeed', 'plotly')],"
        " 'pytest' in names, 'deepspeed' in names)"
    )
    environment = {**os.environ, **user_environment.variables(tmp_path)}
    argv = [sys.executable, "-c", program]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.strip() == "[False, True, True] False True"
