"""Whose a frame is, and the chain of exceptions: real exceptions of real files in a made-up tree."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import sys
from multiprocessing.pool import RemoteTraceback
from pathlib import Path
from typing import Any

import pytest

from tests.launch.ranks import Ranks
from workbench.diagnose import frames
from workbench.diagnose.failure import explain
from workbench.diagnose.frames import CodeTree, code_tree, parse_traceback
from workbench.launching.capture import exceptions
from workbench.store.layout import RunPaths
from workbench.store.rank_records import RankEnd

LIBRARY = """
import json, enum
def parse(text): return json.loads(text)
def wrap(text):
    try:
        return json.loads(text)
    except ValueError as error:
        raise RuntimeError("cannot read the file") from error
def call(function): return function()
"""
OWN = """
import json
try: ExceptionGroup
except NameError:  # Python 3.10
    class ExceptionGroup(Exception):
        def __init__(self, text, exceptions): self.exceptions = tuple(exceptions)
def direct(): raise ValueError("boom")
def in_json(): json.loads("{")
def in_library(): library.parse("{")
def from_library(): library.wrap("{")
def called_back(): library.call(direct)
def named_anew():
    try:
        {}["lr"]
    except KeyError:
        raise ValueError("no learning rate")
def said_from():
    try:
        direct()
    except ValueError as error:
        raise RuntimeError("training failed") from error
def hidden():
    try:
        direct()
    except ValueError:
        raise RuntimeError("training failed") from None
def other_failure():
    try:
        {}["lr"]
    except KeyError:
        direct()
def several(): raise ExceptionGroup("two", [called(direct), called(in_json)])
def called(function):
    try:
        function()
    except Exception as error:
        return error
def pooled():
    try:
        {}["a"]
    except KeyError:
        pass
    raise RuntimeError('Caught ValueError in DataLoader worker process 0.\\nOriginal Traceback (most recent call last):\\n  File "/venv/lib/python3.12/site-packages/torch/utils/data/_utils/worker.py", line 349, in _worker_loop\\n    data = fetcher.fetch(index)\\n           ^^^^^^\\n  File "%s", line 7, in direct\\n    def direct(): raise ValueError("boom")\\n                  ^^^^\\nValueError: boom\\n' % __file__)
"""
LINES = {
    text.split("(")[0].removeprefix("def "): number
    for number, text in enumerate(OWN.splitlines(), 1)
    if text.startswith("def ")
}


class Tree:
    """A project with a script, a package, a virtual environment and libraries in odd places."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.project = folder / "project"
        self.script = self.file("project/train.py", OWN)
        self.code = {
            "script": str(self.script),
            "module": None,
            "working_directory": str(self.project),
            "standard_library": str(Path(os.__file__).parent),
            "packages": [],
        }

    def file(self, name: str, text: str = "") -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def load(self, library: str) -> dict[str, Any]:
        path = self.file(library, LIBRARY)
        made = _module("library", path)
        names = {"__file__": str(self.script), "library": made}
        exec(compile(OWN, str(self.script), "exec"), names)
        return names


def _module(name: str, path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    made = Tree(tmp_path)
    monkeypatch.setitem(sys.modules, "__main__", type(sys)("__main__"))
    sys.modules["__main__"].__file__ = str(made.script)
    return made


def described(tree: Tree, function: Any) -> dict[str, Any]:
    try:
        function()
    except Exception as error:  # noqa: BLE001
        return exceptions.described(error, tree.code)
    raise AssertionError("it did not raise")


LIBRARIES = [
    "project/.venv/lib/python3.12/site-packages/lib.py",
    "project/env/lib64/python3.12/site-packages/lib.py",
    "usr/lib/python3/dist-packages/lib.py",
    "project/.cache/modules/lib.py",
    "opt/conda/lib/python3.11/lib.py",
]


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("direct", "direct"),
        ("in_json", "in_json"),
        ("in_library", "in_library"),
        ("from_library", "from_library"),
        ("called_back", "direct"),
        ("said_from", "direct"),
        ("other_failure", "direct"),
        ("several", "direct"),
        ("pooled", "direct"),
    ],
)
def test_the_line_is_the_users(tree: Tree, library: str, name: str, line: str) -> None:
    told = described(tree, tree.load(library)[name])
    assert told["where"].startswith(f"train.py:{LINES[line]} in ")
    assert told["frame"]["source"].startswith(f"def {line}")


def test_the_chain_is_told_from_the_outermost_to_the_root(tree: Tree) -> None:
    names = tree.load(LIBRARIES[0])
    chains = {
        name: [(one["relation"], one["exception"].split(":")[0]) for one in described(tree, names[name])["chain"]]
        for name in ("said_from", "hidden", "named_anew", "other_failure", "from_library", "several")
    }  # fmt: skip
    assert chains["said_from"] == [("", "RuntimeError"), ("caused by", "ValueError")]
    assert chains["hidden"] == [("", "RuntimeError")]
    assert chains["named_anew"] == [("", "ValueError"), ("while handling", "KeyError")]
    assert chains["from_library"] == [("", "RuntimeError"), ("caused by", "JSONDecodeError")]
    assert [kind for _, kind in chains["several"]][1:] == ["ValueError", "JSONDecodeError"]
    told = described(tree, names["pooled"])
    assert told["chain"][0]["exception"].endswith("DataLoader worker process 0.")
    assert told["chain"][1] == {"exception": "ValueError: boom", "relation": "in another process"}


def test_a_handler_that_names_the_failure_anew_keeps_its_line(tree: Tree) -> None:
    """The `raise` in the handler says what is wrong; the lookup above is where it went wrong."""
    told = described(tree, tree.load(LIBRARIES[0])["named_anew"])
    assert told["frame"]["source"] == '{}["lr"]'


def test_a_pool_of_processes_carries_the_workers_lines(tree: Tree) -> None:
    error = ValueError("boom")
    error.__cause__ = RemoteTraceback(
        f'Traceback (most recent call last):\n  File "{tree.script}", line 3, in direct\nValueError: boom'
    )
    told = exceptions.described(error, tree.code)
    assert told["where"] == "train.py:3 in direct"
    assert [one["relation"] for one in told["chain"]] == ["", "in another process"]


def test_a_syntax_error_is_at_its_own_line(tree: Tree) -> None:
    bad = tree.file("project/model/net.py", "x = 1\ndef f(:\n")

    def load() -> None:
        ast.parse(bad.read_text(), str(bad))

    told = described(tree, load)
    assert told["where"] == "model/net.py:2 in <module>"


def test_the_hook_itself_is_never_named(tree: Tree) -> None:
    ours = [str(Path(exceptions.__file__).parent / name) for name in ("models.py", "backward.py")]
    known = code_tree(tree.code)
    assert known.user_frame([str(tree.script), *ours]) == 0
    assert known.user_frame(ours) is None
    assert CodeTree().user_frame(["/home/me/train.py", *ours]) == 0


def test_a_checkout_of_a_known_library_is_not_the_users(tree: Tree) -> None:
    """`pip install -e ~/project/transformers`, and the user's own package beside it."""
    for name, folder in (("transformers", "transformers"), ("my_models", "elsewhere")):
        url = json.dumps(
            {"url": f"file://{tree.folder}/project/{folder}", "dir_info": {"editable": True}}
        )
        tree.file(f"site-packages/{name}-5.0.dev0.dist-info/direct_url.json", url)
    tree.code["packages"] = [str(tree.folder / "site-packages")]
    library = str(tree.file("project/transformers/src/transformers/trainer.py"))
    example = str(tree.file("project/transformers/examples/run_clm.py"))
    own = str(tree.file("project/elsewhere/my_models/net.py"))
    datasets = str(tree.file("project/datasets/text.py"))  # the user's, whatever its name
    known = code_tree(tree.code)
    assert [known.owns(path) for path in (library, example, own, datasets)] == [False, True, True, True]  # fmt: skip
    assert known.user_frame([str(tree.script), library]) == 0


def test_a_script_inside_an_installed_package_owns_that_package(tree: Tree) -> None:
    """`torchrun -m trl.scripts.sft`: its package is what was started."""
    tree.file("lib/python3.12/site-packages/trl/__init__.py")
    tree.file("lib/python3.12/site-packages/trl/scripts/__init__.py")
    script = str(tree.file("lib/python3.12/site-packages/trl/scripts/sft.py"))
    trainer = str(tree.folder / "lib/python3.12/site-packages/trl/trainer/sft_trainer.py")
    torch = str(tree.folder / "lib/python3.12/site-packages/torch/nn/modules/module.py")
    place = str(tree.folder / "lib/python3.12/site-packages")
    known = code_tree(
        tree.code | {"script": None, "module": "trl.scripts.sft", "packages": [place]}
    )
    assert [known.owns(path) for path in (script, trainer, torch)] == [True, True, False]


def test_an_unknown_tree_still_leaves_libraries_out() -> None:
    known = code_tree(None)
    paths = ["/home/me/train.py", "/usr/lib/python3.11/enum.py", "<frozen importlib._bootstrap>"]
    assert known.user_frame(paths) == 0
    assert known.user_frame(paths[1:]) is None
    assert known.user_frame(["/tmp/ipykernel_12/345.py", paths[1]]) == 0


def test_tracebacks_in_a_log_are_read_as_chains() -> None:
    text = (
        "epoch 1\nTraceback (most recent call last):\n"
        '  File "/home/me/train.py", line 3, in load\n    return table["x"]\n'
        "KeyError: 'x'\n\nThe above exception was the direct cause of the following exception:\n\n"
        'Traceback (most recent call last):\n  File "/home/me/train.py", line 9, in <module>\n'
        "    main()\n  File \"/home/me/train.py\", line 5, in load\n    raise my.Failure('no')\nmy.Failure: no\n"
    )
    outer, inner = parse_traceback(text)
    assert (outer.text, inner.text) == ("Failure: no", "KeyError: 'x'")
    assert (inner.relation, inner.frames[-1].source) == (frames.CAUSED_BY, 'return table["x"]')
    assert parse_traceback("nothing here") == []
    earlier = text.replace("The above exception was the direct cause of the following exception:", "retrying")  # fmt: skip
    assert [one.kind for one in parse_traceback(earlier)] == ["Failure"]


@pytest.mark.parametrize("cut", range(0, 260, 7))
def test_a_torn_traceback_harms_nobody(cut: int) -> None:
    text = (
        'Traceback (most recent call last):\n  File "/a.py", line 3, in f\n    x\nValueError: é' * 3
    )
    parse_traceback(text[:cut])


def test_the_rank_tells_it_and_the_finding_repeats_it(tmp_path: Path) -> None:
    """A real rank under the real hook, whose exception has no text that `str` could give."""
    script = tmp_path / "train.py"
    script.write_text(
        "import enum\n"
        "class Odd(Exception):\n    def __str__(self): raise RuntimeError\n"
        "class Phase(enum.Enum): TRAIN = 1\n"
        "def main():\n    try:\n        Phase('evaluate')\n"
        "    except ValueError as error:\n        raise RuntimeError('unknown phase') from error\n"
        "main()\n"
    )
    ranks = Ranks(tmp_path / "run", str(script))
    assert ranks.wait(240) == [1]
    end = ranks.document("end")
    assert end["where"] == "train.py:7 in main"
    assert [one["relation"] for one in end["chain"]] == ["", "caused by"]
    found = explain(RunPaths(ranks.folder), {0: RankEnd.of(end)}, 1, 0)
    assert found.evidence == "train.py:7 in main: `Phase('evaluate')`"
    assert "RuntimeError: unknown phase, caused by ValueError: 'evaluate'" in found.cause
    script.write_text("import sys\ndef main():\n    sys.exit('no data')\nmain()\n")
    ranks = Ranks(tmp_path / "again", str(script))
    assert ranks.wait(240) == [1]
    assert ranks.document("end")["where"] == "train.py:3 in main"


def test_the_module_that_the_hook_loads_needs_nothing_of_ours() -> None:
    source = ast.parse(Path(frames.__file__).read_text())
    names = {
        alias.name if isinstance(node, ast.Import) else node.module
        for node in ast.walk(source)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    assert names <= {*sys.stdlib_module_names, "collections.abc"}
