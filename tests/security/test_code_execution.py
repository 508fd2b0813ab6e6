"""S3, S4, S5, S16, S18: data of others never becomes code."""

from __future__ import annotations

import ast
import functools
import os
import pickle
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import workbench as wb
from tests.security.payloads import CANARY
from workbench import notifying
from workbench.describe import live_prices
from workbench.estimate.simulation.process import SimulationProcess, SimulationUnavailable
from workbench.observe import trackers
from workbench.recover import checkpoints
from workbench.storage.mirror_state import mirror_command
from workbench.store.layout import RunPaths

ROOT = Path(__file__).parents[2]
SOURCES = [
    *sorted((ROOT / "workbench").rglob("*.py")),
    *sorted((ROOT / "widgets").rglob("*.py")),
    *sorted((ROOT / "environments").rglob("*.py")),
]
SCRIPTS = sorted((ROOT / "widgets").rglob("*.js"))
BANNED = {
    "eval",
    "exec",
    "compile",
    "__import__",
    "os.system",
    "os.popen",
    "pickle.load",
    "pickle.loads",
    "pickle.Unpickler",
    "cloudpickle.load",
    "cloudpickle.loads",
    "marshal.loads",
    "shelve.open",
    "joblib.load",
    "yaml.load",
    "yaml.unsafe_load",
    "yaml.full_load",
    "subprocess.getoutput",
    "subprocess.getstatusoutput",
    "shutil.unpack_archive",
    "tarfile.open",
    "extractall",
}
BANNED_WORDS = {
    "shell": True,
    "weights_only": False,
    "allow_pickle": True,
    "trust_remote_code": True,
}
# Where one of them is right, and why.
ALLOWED = {
    # A file of this package is run under another name, to read its parser's options.
    ("workbench/recipes/__init__.py", "exec"),
    ("workbench/recipes/__init__.py", "compile"),
    # A fork of the warm server runs the user's own script, as `python script.py` would.
    ("workbench/launching/warm/child.py", "exec"),
    ("workbench/launching/warm/child.py", "compile"),
    # A constant text: Python ends itself by SIGINT only after one that raised KeyboardInterrupt.
    ("workbench/launching/capture/exit_codes.py", "exec"),
    # Compiled and never run: what a cell's source says only the compiler refuses (`return` outside).
    ("workbench/launching/cell/missing.py", "compile"),
    # The child of a simulation reads what its parent, this same program, writes to its stdin.
    ("workbench/estimate/simulation/child.py", "pickle.loads"),
}


@functools.cache
def calls(path: Path) -> list[tuple[str, ast.Call]]:
    """Every call in a file with the full name it goes under, imports unfolded."""
    tree = ast.parse(path.read_text())
    full: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            full |= {one.asname or one.name: f"{node.module}.{one.name}" for one in node.names}
        elif isinstance(node, ast.Import):
            full |= {one.asname: one.name for one in node.names if one.asname}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            head, dot, rest = ast.unparse(node.func).partition(".")
            found.append((full.get(head, head) + dot + rest, node))
    return found


def offences(path: Path) -> list[str]:
    """The calls of a file that could turn data into code."""
    name = str(path.relative_to(ROOT))
    found: list[str] = []
    for called, node in calls(path):
        last = called.rpartition(".")[2]
        hit = called if called in BANNED else last if last == "extractall" else None
        words = {word.arg: ast.unparse(word.value) for word in node.keywords}
        banned = [
            f"{word}={value}"
            for word, value in BANNED_WORDS.items()
            if words.get(word) == str(value)
        ]
        if hit and (name, hit) not in ALLOWED:
            banned.append(called)
        if called == "torch.load" and words.get("weights_only") != "True":
            banned.append("torch.load without weights_only=True")
        found += [f"{name}:{node.lineno}: {what}" for what in banned]
    return found


@pytest.mark.slow
def test_nothing_of_ours_turns_data_into_code() -> None:
    assert not [line for path in SOURCES for line in offences(path)]


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("eval(text)", "eval"),
        ("from os import system as run; run(text)", "os.system"),
        ("import pickle as p; p.loads(data)", "pickle.loads"),
        ("archive.extractall(folder)", "extractall"),
        ("subprocess.run(text, shell=True)", "shell=True"),
        ("torch.load(path)", "without weights_only"),
        ("torch.load(path, weights_only=False)", "weights_only=False"),
    ],
)
def test_the_search_for_such_calls_sees_them(
    line: str, what: str, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    path = tmp_path / "sample.py"
    path.write_text(line)
    assert any(what in offence for offence in offences(path))


def test_no_script_of_the_page_makes_markup_or_code_of_text() -> None:
    ways = re.compile(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function\(|setTimeout\(['\"`]|DOMParser|createContextualFragment|srcdoc"
    )
    found: list[str] = []
    for path in SCRIPTS:
        code = re.sub(r"//[^\n]*|/\*.*?\*/", "", path.read_text(), flags=re.DOTALL)
        found += [f"{path.name}: {hit}" for hit in ways.findall(code)]
    assert SCRIPTS
    assert not found


class Bomb:
    """What an unpickler would run."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.target}",)


def test_looking_at_a_checkpoint_of_somebody_runs_nothing(tmp_path: Path) -> None:
    canary = tmp_path / CANARY
    bomb = pickle.dumps(Bomb(canary))
    paths = RunPaths(tmp_path / "runs" / "theirs")
    folder = paths.checkpoints / "step-00000010"
    folder.mkdir(parents=True)
    for name in ("optimizer.bin", "random_states_0.pkl", "custom_checkpoint_0.pkl", "model.pt"):
        (folder / name).write_bytes(bomb)
    with zipfile.ZipFile(folder / "pytorch_model.bin", "w") as archive:
        archive.writestr("archive/data.pkl", bomb)
    for checkpoint in checkpoints.list_checkpoints(paths):
        checkpoints.verify(checkpoint)
        str(checkpoint.document())
    checkpoints.newest_intact(paths)
    assert not canary.exists()
    pickle.loads(bomb)  # the bomb is a real one
    assert canary.exists()


def test_yaml_constructs_no_objects(tmp_path: Path) -> None:
    canary = tmp_path / CANARY
    path = tmp_path / "accelerate.yaml"
    for text in (
        f"distributed_type: !!python/object/apply:os.system ['touch {canary}']\n",
        f"!!python/object/new:os.system ['touch {canary}']: 1\ndistributed_type: FSDP\n",
        "distributed_type: !!python/name:os.system\n",
    ):
        path.write_text(text)
        with pytest.raises(wb.UsageError, match="neither YAML nor JSON"):
            wb.read_strategy(path)
    assert not canary.exists()


def test_a_small_yaml_cannot_unfold_to_a_large_one(tmp_path: Path) -> None:
    lines = ['a0: &a0 ["lol","lol","lol","lol","lol","lol","lol","lol","lol"]']
    for level in range(1, 30):
        lines.append(f"a{level}: &a{level} [{','.join([f'*a{level - 1}'] * 9)}]")
    path = tmp_path / "laughs.yaml"
    path.write_text("\n".join([*lines, "distributed_type: *a29", "num_processes: 2"]))
    with pytest.raises(wb.UsageError, match="aliases"):
        wb.read_strategy(path)
    path.write_text("x: " + "[" * 200_000)
    with pytest.raises(wb.UsageError):
        wb.read_strategy(path)
    path.write_text("x: 1\n" * 1_000_000)
    with pytest.raises(wb.UsageError, match="larger than"):
        wb.read_strategy(path)


def test_a_sitecustomize_of_the_working_directory_is_not_ours_to_load(tmp_path: Path) -> None:
    """The hook chains to the user's own, found on sys.path; the folder one stands in is not that."""
    from workbench.launching.capture import SITE_FOLDER

    assert SITE_FOLDER.is_absolute()
    assert SITE_FOLDER.is_relative_to(ROOT / "workbench")
    canary = tmp_path / CANARY
    (tmp_path / "sitecustomize.py").write_text(f"open({str(canary)!r}, 'w')")
    environment = {**os.environ, "PYTHONPATH": str(SITE_FOLDER)}
    for argv in (["-m", "json.tool", "--help"], ["-c", ""]):
        subprocess.run(
            [sys.executable, *argv], cwd=tmp_path, env=environment, check=True, capture_output=True
        )
    assert not canary.exists()
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    shutil.move(tmp_path / "sitecustomize.py", theirs)
    environment["PYTHONPATH"] = f"{SITE_FOLDER}{os.pathsep}{theirs}"
    package = theirs / "sitecustomize"  # also where it is a package, and under its own name
    package.mkdir()
    shutil.move(theirs / "sitecustomize.py", package / "__init__.py")
    code = f"import sitecustomize; assert {str(package)!r} in sitecustomize.__file__"
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, check=True)
    assert canary.exists()  # what the user put on the path still works


STARTS_IN_PLACE = {  # where the working directory belongs on the module path, or a script is named
    "launching/prepare/accelerate_config.py": "the training's own launcher",
    "launching/warm/client.py": "start.py by its path",
}


def test_no_process_of_ours_takes_modules_from_the_working_directory() -> None:
    """``-c`` and ``-m`` put it before the standard library: it may be a download, or /tmp."""
    found = set[str]()
    for path in sorted((ROOT / "workbench").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            words = [ast.unparse(word) for word in getattr(node, "elts", ())]
            if "sys.executable" in words and {"'-c'", "'-m'", "'-u'"} & set(words):
                found.add(str(path.relative_to(ROOT / "workbench")))
    assert found == set(STARTS_IN_PLACE)


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with modules that go before others of their names; returns the canary."""
    canary = tmp_path / CANARY
    for name in ("json", "torch", "logging", "queue", "requests"):
        (tmp_path / f"{name}.py").write_text(f"open({str(canary)!r}, 'w'); raise ImportError")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])  # as a program has it
    return canary


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 has no -P")
def test_what_follows_a_run_is_not_of_the_projects_folder(planted: Path) -> None:
    """Its mirror would die of a project's logging.py, and the copy would never be sent."""
    paths = RunPaths(planted.parent / "none")
    commands = [
        mirror_command(paths, "file:///nowhere"),
        notifying.follow_command(paths, ["me"]),
        trackers.follow_command(paths, "tensorboard"),
    ]
    for command in commands:
        subprocess.run(command, check=False, capture_output=True, timeout=60)
    assert not planted.exists()


@pytest.mark.slow
def test_a_look_at_this_host_takes_no_modules_of_the_working_directory(planted: Path) -> None:
    checks = {check["name"]: check for check in wb.doctor()["checks"]}
    assert not planted.exists()
    assert checks["torch"]["ok"]
    assert live_prices._ask("no-such-provider", 5.0).error
    assert not planted.exists()
    with pytest.raises(SimulationUnavailable):  # an empty request
        SimulationProcess([{}], timeout_seconds=60).wait()
    assert not planted.exists()
