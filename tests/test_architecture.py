"""The shape of the code: who may import whom, what `import workbench` loads, how long files are."""

from __future__ import annotations

import ast
import os
import statistics
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import workbench as wb

ROOT = Path(__file__).parent.parent
# A package may import only packages to its left. `store` (the run directory's schema and files)
# stands before the packages that read it; `launching` stands after them because its supervisor writes
# view and report, chooses checkpoints and diagnoses.
ORDER = (
    *("errors", "units", "version"),
    *(
        "describe",
        "trainer_configs",
        "training_data",
        "estimate",
        "planning",
        "store",
        "provenance",
        "observe",
        "recipes",
        "script_options",
        "recover",
        "trained_model",
        "storage",
        "notifying",
    ),
    *(
        "diagnose",
        "launching",
        "queueing",
        "sweeping",
        "measuring",
        "verifying",
        "rehearsing",
        "compare",
        "engines",
        "pages",
        "lessons",
        "cli",
    ),
)
HEAVY = {
    "torch",
    "accelerate",
    "numpy",
    "plotly",
    "ipywidgets",
    "pynvml",
    "psutil",
    "rich",
    "typer",
}
FILES = sorted((ROOT / "workbench").rglob("*.py"))
OURS = [*FILES, *sorted((ROOT / "widgets").rglob("*.py"))]


def statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """All of them, also inside of others: a third of the nodes that `ast.walk` visits."""
    for statement in body:
        yield statement
        for name in ("body", "orelse", "finalbody"):
            yield from statements(getattr(statement, name, []))
        for part in (*getattr(statement, "handlers", []), *getattr(statement, "cases", [])):
            yield from statements(part.body)


class Parsed(NamedTuple):
    """What the tests here ask of a file; its tree is let go."""

    imports: set[str]
    """Modules imported anywhere in it, also in a function or for types alone."""
    functions: dict[str, int]
    """Lines of each function."""


@pytest.fixture(scope="module")
def parsed() -> dict[Path, Parsed]:
    """Each file of ours."""
    return {path: _parsed(path) for path in OURS}


def _parsed(path: Path) -> Parsed:
    found, functions = set[str](), dict[str, int]()
    for node in statements(ast.parse(path.read_text()).body):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.add(node.module)
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            functions[f"{path.name}:{node.name}"] = node.end_lineno - node.lineno + 1
    return Parsed(found, functions)


def unit(module: str) -> str | None:
    parts = module.split(".")
    return parts[1] if parts[0] == "workbench" and len(parts) > 1 and parts[1] in ORDER else None


def imports_to_the_right(path: Path, modules: set[str]) -> list[str]:
    """The imports of a file that point to a package on its right, or a package without a place."""
    own = path.relative_to(ROOT / "workbench").parts[0].removesuffix(".py")
    if own in {"__init__", "__main__", "cli"}:
        return []
    if own not in ORDER:
        return [f"{path.relative_to(ROOT)}: {own} has no place in the order"]
    others = {module: unit(module) for module in modules}
    return [
        f"{path.relative_to(ROOT)}: {own} imports {module}"
        for module, other in sorted(others.items())
        if other is not None and other != own and ORDER.index(other) > ORDER.index(own)
    ]


def test_packages_import_only_to_their_left(parsed: dict[Path, Parsed]) -> None:
    assert FILES
    assert not [line for path in FILES for line in imports_to_the_right(path, parsed[path].imports)]


def test_the_engine_never_imports_the_widgets(parsed: dict[Path, Parsed]) -> None:
    assert not [
        path for path in FILES if any("workbench_widgets" in name for name in parsed[path].imports)
    ]


def module_name(path: Path) -> str:
    base = ROOT if path.is_relative_to(ROOT / "workbench") else ROOT / "widgets"
    return ".".join(path.relative_to(base).with_suffix("").parts).removesuffix(".__init__")


def test_no_import_cycles_between_modules(parsed: dict[Path, Parsed]) -> None:
    names = {module_name(path): path for path in OURS}
    doors = {"workbench", "workbench_widgets"}  # their packages load public names on use
    graph = {
        name: parsed[path].imports & names.keys() - {name, *doors} for name, path in names.items()
    }
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " -> ".join([*trail, name])
        if name not in done:
            for other in graph[name]:
                visit(other, (*trail, name))
            done.add(name)

    for name in graph:
        visit(name, ())


def test_import_workbench_is_light() -> None:
    code = "import sys, workbench; print(*{name.split('.')[0] for name in sys.modules})"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert not HEAVY & set(loaded.stdout.split())


def test_the_supervisor_is_light() -> None:
    """Each run pays its imports, those of its end as well."""
    modules = (
        *("launching.supervise.lifecycle", "launching.supervise.monitor", "observe.report"),
        *("observe.rows", "observe.prediction_error", "launching.resume.resumable"),
    )
    code = f"import sys, {', '.join(f'workbench.{name}' for name in modules)}; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    packages = {name.split(".")[0] for name in loaded}
    assert not {"torch", "accelerate", "numpy", "plotly", "rich", "typer"} & packages
    own = {name.split(".")[1] for name in loaded if name.startswith("workbench.")}
    assert not {"trainer_configs", "training_data", "planning", "trained_model"} & own
    assert "workbench.estimate.memory" not in loaded


def test_the_public_door() -> None:
    assert len(wb._HOMES) <= 42  # `__version__` beside them
    assert sorted(wb.__all__, key=str) == list(wb.__all__)
    for name in wb.__all__:
        assert getattr(wb, name) is not None
    assert set(wb._HOMES) == set(wb.__all__) - {"__version__"}
    assert type(wb) is types.ModuleType
    for path in FILES:  # an imported package is bound to its parent, over whatever has its name
        name = path.relative_to(ROOT / "workbench").parts[0].removesuffix(".py")
        assert name == "recipes" or name not in wb.__all__, f"{path} hides wb.{name}"


def test_files_and_functions_stay_short(parsed: dict[Path, Parsed]) -> None:
    lengths = {path: len(path.read_text().splitlines()) for path in OURS}
    assert not {str(path): count for path, count in lengths.items() if count > 400}
    functions = dict(item for file in parsed.values() for item in file.functions.items())
    assert not {name: count for name, count in functions.items() if count > 60}
    assert statistics.median(functions.values()) <= 20


def test_forbidden_shortcuts() -> None:
    banned = ("shell=True", "weights_only=False", "pickle.load", "allow_pickle=True", "os.system(")
    for path in OURS:
        if path.name == "test_architecture.py":
            continue
        text = path.read_text()
        assert not [word for word in banned if word in text], path


def test_version_is_stated_twice_and_equal() -> None:
    assert f'version = "{wb.__version__}"' in (ROOT / "pyproject.toml").read_text()


def test_top_level_holds_nothing_else() -> None:
    listed = subprocess.run(
        ["git", "ls-tree", "--name-only", "HEAD"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    allowed = {
        *(
            "notebooks",
            "workbench",
            "widgets",
            "environments",
            "tests",
            "pyproject.toml",
            "Makefile",
        ),
        *("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", ".ci", ".gitignore"),
        *(".pre-commit-config.yaml",),
    }
    assert set(listed.stdout.split()) <= allowed
    assert os.access(ROOT / ".ci" / "run", os.R_OK)
