"""How the command starts: what it loads, and what it says when a file of the user's is in the way."""

import contextlib
import importlib.metadata
import os
import re
import subprocess
import sys

import pytest
import typer.testing

from workbench import cli
from workbench.cli import entry, shadowing
from workbench.cli.commands import COMMANDS, SECTIONS, load
from workbench.cli.entry import app

LOADED = """
import sys
from workbench.cli import main
try:
    main()
finally:
    print(*sorted(sys.modules), file=sys.stderr)
"""


@pytest.mark.parametrize("words", [["--help"], ["version"], ["--version"]])
def test_no_command_is_loaded_for_nothing(words):
    """Modules are counted, not seconds: all commands together load 400 of ours and Rich."""
    done = subprocess.run(
        [sys.executable, "-c", LOADED, *words], capture_output=True, text=True, check=True
    )
    modules = done.stderr.split()
    ours = [name for name in modules if name.startswith("workbench")]
    assert len(ours) <= 9, ours
    assert not {"rich", "numpy", "torch", "psutil", "json", "asyncio", "pydantic"} & set(modules)


@pytest.mark.parametrize("module", ["workbench", "workbench.cli"])
def test_it_can_be_run_as_a_module(module):
    words = [sys.executable, "-m", module, "--version"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout.split()[-1] == importlib.metadata.version("training-workbench")


@pytest.mark.slow
def test_what_starts_and_follows_no_run_does_not_load_that():
    """The packages of launching are two thirds of all: `workbench runs` would take as long."""
    light = "runs models gpus prices memory cost plan advise compare tag note archive delete set ui"
    script = "import sys\nfrom workbench.cli.commands import load\nload(sys.argv[1])\n"
    script += "print('workbench.launching.run' in sys.modules)"
    for name in light.split():
        argv = [sys.executable, "-c", script, name]
        done = subprocess.run(argv, capture_output=True, text=True, check=True)
        assert done.stdout == "False\n", name


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_says_what_the_command_says(name):
    command = load(name)
    assert command.name == name
    assert " ".join(command.help.split("\n\n")[0].split()) == COMMANDS[name].summary


def test_help_lists_every_command_in_order():
    text = typer.testing.CliRunner().invoke(app, ["--help"]).stdout
    listed = re.findall(r"^  (\w\S*) ", text.partition("Begin:")[2], re.MULTILINE)
    assert listed == " ".join(SECTIONS.values()).split()


def test_a_near_miss_is_suggested():
    done = typer.testing.CliRunner().invoke(app, ["lunch"])
    assert done.exit_code == 2
    assert "Did you mean 'launch'?" in done.stderr


def hidden_by(tmp_path, file, text, *words):
    """What the command says where a folder of PYTHONPATH has that file."""
    path = tmp_path / file
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "NO_COLOR": "1"}
    argv = [sys.executable, "-m", "workbench.cli", *words]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=environment)
    return path, done


@pytest.mark.parametrize(
    ("file", "text", "why"),
    [
        ("typing.py", "raise RuntimeError('mine')", "RuntimeError: mine"),
        ("typing.py", "x = 1", "ImportError: cannot import name"),
        ("csv.py", "def (", "SyntaxError"),
        ("csv.py", "raise SystemExit(0)", "SystemExit: 0"),
        ("statistics/__init__.py", "1 / 0", "ZeroDivisionError"),
    ],
)
def test_a_file_that_hides_a_module_of_python_is_named(file, text, why, tmp_path):
    path, done = hidden_by(tmp_path, file, text, "compare", "--help")
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: {path} shadows Python's standard module")
    assert why in done.stderr
    assert "Traceback" not in done.stderr
    assert f"remove {tmp_path} from PYTHONPATH" in done.stderr


@pytest.mark.parametrize("file", ["rich.py", "typer.py", "psutil.py", "rich/__init__.py"])
def test_a_file_that_hides_a_package_is_named_and_never_run(file, tmp_path):
    """As an import it ran: a script that ends by sys.exit() ended the command without a word."""
    ran = tmp_path / "ran"
    text = f"open({str(ran)!r}, 'w').close()\nraise SystemExit(0)"
    path, done = hidden_by(tmp_path, file, text, "doctor")
    name = file.partition("/")[0].removesuffix(".py")
    assert done.returncode == 1
    assert done.stderr == (
        f"error: {path} shadows the package {name}, so workbench cannot run.\n"
        f"Next: rename that file, or remove {tmp_path} from PYTHONPATH.\n"
    )
    assert not ran.exists()


def test_a_file_in_the_working_directory_hides_a_package_for_python_m_alone(tmp_path):
    (tmp_path / "rich.py").write_text("raise SystemExit(0)")
    environment = {name: one for name, one in os.environ.items() if name != "PYTHONPATH"}
    script = "from workbench.cli import main; main()"
    said = []
    for argv in (["-m", "workbench.cli"], ["-I", "-c", script]):
        command = [sys.executable, *argv, "runs", "--store", str(tmp_path / "runs")]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env=environment, cwd=tmp_path
        )
        said.append(done.stderr)
    assert f"{tmp_path / 'rich.py'} shadows the package rich" in said[0]
    assert "call workbench from another folder" in said[0]
    assert said[1] == ""


def test_a_folder_that_packages_were_installed_into_hides_none(tmp_path):
    """``pip install --target``, named in PYTHONPATH, is a choice of the user's."""
    (tmp_path / "rich-99.dist-info").mkdir()
    _, done = hidden_by(tmp_path, "rich.py", "raise RuntimeError('mine')", "runs")
    assert "RuntimeError: mine" in done.stderr
    assert "shadows" not in done.stderr


def test_every_package_that_the_commands_import_is_guarded():
    wanted, names = {"training-workbench"}, set()
    while wanted:
        name = wanted.pop()
        names.add(name)
        for one in importlib.metadata.requires(name) or ():
            needed = re.split(r"[^\w.-]", one)[0].lower()
            if "extra ==" not in one and "sys_platform" not in one and needed not in names:
                with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                    wanted |= {importlib.metadata.metadata(needed)["Name"].lower()} - names
    modules = {
        module
        for module, packages in importlib.metadata.packages_distributions().items()
        if names & {one.lower() for one in packages}
    }
    not_imported = {"example", "tests", "integrity_tests"}  # that a wheel brought along
    public = {one for one in modules - not_imported if not one.startswith(("_", ".", "workbench"))}
    assert public <= shadowing.PACKAGES, public - shadowing.PACKAGES


def test_a_fault_of_ours_keeps_its_traceback(monkeypatch):
    """Where no file of the user's hides a module, none is blamed."""

    def fail():
        raise RuntimeError("ours")

    monkeypatch.setattr(entry, "run_app", fail)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    with pytest.raises(RuntimeError, match="ours"):
        cli.main()
