"""Every command and every line of Python in README.md and the other pages is one that this version takes.

Commands are parsed by the application itself and not run; Python is compiled, its names are looked
up, and each call is bound to the signature of what it calls. What needs neither a GPU, a training
nor a file of the reader's is run.
"""

import ast
import inspect
import re
import shlex
from pathlib import Path

import pytest
import workbench_widgets

import workbench as wb
from workbench.cli.commands import COMMANDS, load

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text("utf-8")
PAGES = ("CONTRIBUTING.md", "tests/accuracy/README.md", "tests/benchmarks/README.md")
TEXT = "\n".join([README, *((ROOT / page).read_text("utf-8") for page in PAGES)])
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", TEXT, re.DOTALL)
PROSE = re.sub(r"```.*?```", "", TEXT, flags=re.DOTALL)
SPANS = re.findall(r"`([^`\n]+)`", PROSE)
OURS = {name: getattr(workbench_widgets, name) for name in workbench_widgets.__all__}


def lines():
    """Every line that is typed into a shell."""
    for language, text in BLOCKS:
        if not language:
            yield from text.splitlines()
    yield from SPANS


def commands():
    """The words of each ``workbench …`` line, options in brackets taken as given."""
    for line in lines():
        plain = line.strip().removeprefix(".venv/bin/")
        if plain.startswith("workbench ") and "|" not in plain and "…" not in plain:
            yield pytest.param(shlex.split(re.sub(r"[\[\]]", "", plain), comments=True), id=plain)


@pytest.mark.parametrize("words", list(commands()))
def test_a_command_is_one(words):
    command = load(words[1])
    command.make_context(f"workbench {words[1]}", words[2:])  # raises on wrong usage; runs nothing


def test_the_list_of_commands_is_complete():
    (listed,) = re.findall(r"`workbench (launch \|[^`]+)`", PROSE)
    names = [name.strip() for name in listed.split("|")]
    assert len(names) == len(set(names))
    assert set(names) == {*COMMANDS, "version"}


def test_the_readme_is_one_page():
    assert len(README.splitlines()) <= 150


def test_the_make_targets_exist():
    targets = set(re.findall(r"(?m)^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8")))
    assert {
        name for line in lines() for name in re.findall(r"(?<![\w-])make ([a-z-]+)", line)
    } <= targets


def test_the_files_exist():
    """Those named with their place."""
    named = re.findall(
        r"(?<![\w-])(?:tests|notebooks|workbench|environments|widgets)/[\w./-]*\w", TEXT
    )
    missing = {path for path in named if not (ROOT / path).exists()}
    assert not {path for path in missing if not (ROOT / f"{path}.ipynb").exists()}


def python():
    """(text, tree) of the blocks, and of spans that call something of ours."""
    for language, text in BLOCKS:
        if language == "python":
            yield pytest.param(ast.parse(text), id=text.splitlines()[0])
    for span in SPANS:
        try:
            tree = ast.parse(span)
        except SyntaxError:
            continue
        if any(isinstance(node, ast.Call) for node in ast.walk(tree)):
            yield pytest.param(tree, id=span)


def called(function, names):
    """What is called, where it is ours: a name, or an attribute of `wb`, a run or a class."""
    if isinstance(function, ast.Name):
        return names.get(function.id) or OURS.get(function.id)
    if isinstance(function, ast.Attribute):
        owner = function.value
        if isinstance(owner, ast.Name):
            known = {"wb": wb, "workbench": wb, "run": wb.Run, **names}.get(owner.id)
            return None if known is None else getattr(known, function.attr)
    return None


@pytest.mark.parametrize("tree", list(python()))
def test_python_fits_the_signatures(tree):
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            exec(compile(ast.Module([node], []), "README.md", "exec"), names)
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == "wb"
        ):
            assert hasattr(wb, node.attr), node.attr
        if not isinstance(node, ast.Call) or (target := called(node.func, names)) is None:
            continue
        owner = getattr(getattr(node.func, "value", None), "id", None)
        given = [None] * (len(node.args) + (owner == "run"))  # a method's self
        keywords = dict.fromkeys(keyword.arg for keyword in node.keywords if keyword.arg)
        if "..." not in ast.unparse(node):
            inspect.signature(target).bind(*given, **keywords)


def test_the_planning_example_runs():
    (text,) = [text for language, text in BLOCKS if language == "python" and "wb.plan" in text]
    names = {}
    exec(text, names)
    assert names["plans"].best is not None
    assert names["step"].mfu > 0


def test_keras_mirrored_is_launched_by_name():
    """It is called a recipe; it starts as anyone's script does."""
    checked = wb.request("keras_mirrored", cpu=True, strategy="single")
    assert "keras_mirrored.py" in checked.shell()
