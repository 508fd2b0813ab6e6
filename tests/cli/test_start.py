"""How the command starts: what it loads, and what it says when a file of the user's is in the way."""

import os
import subprocess
import sys

import pytest
import typer.testing

from workbench.cli.commands import COMMANDS, load
from workbench.cli.entry import app

LOADED = """
import sys
from workbench.cli import main
try:
    main()
finally:
    print(*sorted(sys.modules), file=sys.stderr)
"""


@pytest.mark.parametrize("words", [["--help"], ["version"]])
def test_no_command_is_loaded_for_nothing(words):
    """Modules are counted, not seconds: all commands together load 400 of ours and Rich."""
    done = subprocess.run(
        [sys.executable, "-c", LOADED, *words], capture_output=True, text=True, check=True
    )
    modules = done.stderr.split()
    ours = [name for name in modules if name.startswith("workbench")]
    assert len(ours) <= 8, ours
    assert not {"rich", "numpy", "torch", "psutil", "json", "asyncio"} & set(modules)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_says_what_the_command_says(name):
    command = load(name)
    assert command.name == name
    assert " ".join(command.help.split("\n\n")[0].split()) == COMMANDS[name].summary


def test_help_lists_every_command_in_order():
    text = typer.testing.CliRunner().invoke(app, ["--help"]).stdout
    listed = [line.split()[0] for line in text.partition("Commands:")[2].splitlines() if line]
    assert listed == [*COMMANDS, "version"]


def test_a_near_miss_is_suggested():
    done = typer.testing.CliRunner().invoke(app, ["lunch"])
    assert done.exit_code == 2
    assert "Did you mean 'launch'?" in done.stderr


@pytest.mark.parametrize(
    ("file", "text", "why"),
    [
        ("typing.py", "raise RuntimeError('mine')", "RuntimeError: mine"),
        ("typing.py", "x = 1", "ImportError: cannot import name"),
        ("csv.py", "def (", "SyntaxError"),
        ("statistics/__init__.py", "1 / 0", "ZeroDivisionError"),
    ],
)
def test_a_file_that_hides_a_module_of_python_is_named(file, text, why, tmp_path):
    path = tmp_path / file
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "NO_COLOR": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "workbench.cli", "compare", "--help"],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: {path} shadows Python's standard module")
    assert why in done.stderr
    assert "Traceback" not in done.stderr
    assert f"remove {tmp_path} from PYTHONPATH" in done.stderr


def test_a_fault_of_ours_keeps_its_traceback(tmp_path):
    """A module of the user's that hides nothing of Python's is not blamed."""
    (tmp_path / "psutil.py").write_text("raise RuntimeError('mine')")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    argv = [sys.executable, "-m", "workbench.cli", "doctor"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=environment)
    assert "Traceback" in done.stderr
