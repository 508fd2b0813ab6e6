"""The list of dependencies is short on purpose: a new one is a decision, made here and in pyproject."""

import ast
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "pyproject.toml").read_text("utf-8")

EXPECTED = {
    "dependencies": ["gpuhunt", "nvidia-ml-py", "psutil", "rich", "typer"],
    "train": ["accelerate", "cloudpickle", "numpy", "peft", "torch", "transformers"],
    "lab": ["anywidget", "ipywidgets", "jupyterlab", "plotly"],
    "deepspeed": ["deepspeed"],
    "lowbit": ["bitsandbytes", "torchao"],
    "finetune": ["datasets", "peft", "trl"],
    "image": ["diffusers", "peft", "pillow"],
    "keras": ["keras", "tensorflow-cpu"],
    "notify": ["apprise"],
    "trackers": ["alembic", "mlflow-skinny", "sqlalchemy", "tensorboard", "trackio", "wandb"],
    "sweep": ["optuna"],
    "amd": ["amdsmi"],
    "agents": ["mcp"],
    "storage": ["fsspec", "s3fs"],
    "export": ["pyarrow"],
    "dev": [
        "flask",
        "flask-cors",
        "hypothesis",
        "marimo",
        "moto",
        "nbclient",
        "nbstripout",
        "notebook",
        "pre-commit",
        "pyright",
        "pytest",
        "pytest-timeout",
        "pytest-xdist",
        "ruff",
        "selenium",
        "selenium-axe-python",
    ],
}

PROVIDED = {
    # import -> the dependency that brings it, where the names differ: always there with it
    "pynvml": "nvidia-ml-py",
    "traitlets": "ipywidgets",
    "IPython": "ipywidgets",
    "ipykernel": "jupyterlab",
    "jupyter_core": "jupyterlab",
    "jupyter_client": "jupyterlab",
    "jupyter_server": "jupyterlab",
    "tornado": "jupyterlab",
    "nbformat": "jupyterlab",
    "yaml": "accelerate",
    "safetensors": "accelerate",
    "huggingface_hub": "accelerate",
    "tokenizers": "transformers",
}

OPTIONAL = {
    # import -> who installs it, and why we may name it: only used where the user already has it
    "optuna": "the extra sweep; trials of sweeps",
    "fsspec": "the extra storage, and torch; addresses of object stores",
    "amdsmi": "the extra amd, and ROCm's images; readings of AMD's GPUs",
    "mcp": "the extra agents; serves agents",
    "apprise": "the extra notify; sends messages",
    "bitsandbytes": "the extra lowbit; QLoRA and 8-bit AdamW",
    "torchao": "the extra lowbit; matmuls in fp8",
    "keras": "the extra keras; the recipe keras_mirrored.py",
    "tensorflow": "the extra keras; the recipe keras_mirrored.py",
    "deepspeed": "the extra deepspeed, which the set-up installs where it can; the ZeRO strategies",
    "datasets": "the extra finetune; scripts that load data with it",
    "diffusers": "the extra image; the recipe finetune_image.py",
    "PIL": "the extra image; opens pictures to train on",
    "trl": "the extra finetune; the recipe finetune.py",
    "tensorboard": "the extra trackers",
    "tensorboardX": "the user; a tracker",
    "mlflow": "the extra trackers",
    "pyarrow": "the extra export; Parquet files",
    "wandb": "the extra trackers",
    "trackio": "the extra trackers",
}

OURS = {"workbench", "workbench_widgets"}
# Recipes are scripts: they import the files beside them.
BESIDE = {path.stem for path in (ROOT / "workbench" / "recipes").glob("*.py")}


def groups():
    """{group: [(name, requirement, rest of the line)]}, read line by line: comments count."""
    found, group = {}, None
    for line in TEXT.splitlines():
        if begun := re.match(r"([\w-]+) = \[$", line):
            group = begun[1] if begun[1] in EXPECTED else None
        elif line.startswith("]"):
            group = None
        elif group and (entry := re.match(r'\s+"(([A-Za-z0-9-]+)[^"]*)",(.*)$', line)):
            found.setdefault(group, []).append((entry[2], entry[1], entry[3]))
    return found


def imports(directory):
    """{top-level module: first place}, lazy imports inside functions included."""
    found = {}
    for path in sorted(directory.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"), filename=str(path))):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module]
            elif _is_import_by_name(node):
                names = [node.args[0].value]
            for name in names:
                found.setdefault(name.split(".")[0], f"{path.relative_to(ROOT)}:{node.lineno}")
    return found


def _is_import_by_name(node):
    """importlib.import_module("name") or __import__("name")."""
    if not (isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant)):
        return False
    name = getattr(node.func, "attr", getattr(node.func, "id", ""))
    is_name = isinstance(node.args[0].value, str) and not node.args[0].value.startswith(".")
    return name in {"import_module", "__import__"} and is_name


def test_the_list_is_the_one_that_was_decided():
    assert {
        group: [name for name, *_ in entries] for group, entries in groups().items()
    } == EXPECTED


def test_every_dependency_has_a_lower_bound_and_a_reason():
    for entries in groups().values():
        for name, requirement, rest in entries:
            assert ">=" in requirement, f"{name}: no lower bound"
            assert re.match(r"\s+# \S.{10,}", rest), f"{name}: no reason in its line"


@pytest.mark.slow  # reads every file
@pytest.mark.parametrize(
    ("directory", "allowed"),
    [("workbench", ("dependencies", "train", "lab")), ("widgets", ("dependencies", "lab"))],
)
def test_what_is_imported_is_declared(directory, allowed):
    declared = {name for group in allowed for name in EXPECTED[group]}
    unknown = {}
    for module, place in imports(ROOT / directory).items():
        if module in sys.stdlib_module_names or module in OURS | BESIDE | OPTIONAL.keys():
            continue
        if PROVIDED.get(module, module) not in declared:
            unknown[module] = place
    assert not unknown, "declare it in pyproject.toml with its reason, or do without"


@pytest.mark.slow  # reads every file
def test_what_is_declared_is_used():
    """The core's list only: extras hold things that are started or asked for by others."""
    used = {
        PROVIDED.get(module, module)
        for directory in ("workbench", "widgets")
        for module in imports(ROOT / directory)
    }
    unused = set(EXPECTED["dependencies"]) - used
    assert not unused, f"nothing imports {sorted(unused)}"
