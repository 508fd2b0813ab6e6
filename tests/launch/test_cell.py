"""A cell, or a function, as the script of a run: what it takes along, and what is refused."""

from __future__ import annotations

import ast
import functools
import importlib
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import workbench as wb
from workbench.cli.cell import read_line
from workbench.diagnose import frames
from workbench.errors import StoreError, UsageError
from workbench.launching.cell.included_source import included_source
from workbench.launching.cell.missing import missing_names
from workbench.launching.cell.script import as_words, cell_script, function_script, kept_script
from workbench.launching.start import start as start_module

WIDTH = 4


def double(x: int) -> int:
    return WIDTH * x + math.floor(0.5)


def uses_data() -> int:
    return len(DATA)


DATA = [1, 2, 3]


class Base:
    scale = WIDTH


class Net(Base):
    def forward(self, x: int) -> int:
        return double(x) * self.scale


def closure() -> Callable[[], int]:
    rate = 3

    def inner() -> int:
        return rate

    return inner


NOTEBOOK: dict[str, Any] = {
    **{name: globals()[name] for name in ("math", "double", "Net", "Base", "DATA", "WIDTH")},
    "uses_data": uses_data,
    "inner": closure(),
    "Path": Path,
    "short": lambda x: x,
    "model": object(),
    "np": math,
    "rate": 0.1,
}
for one in (double, uses_data, Base, Net):
    one.__module__ = "__main__"  # as in a notebook


@pytest.mark.parametrize(
    ("source", "missing"),
    [
        ("x = 1\nprint(x)", {}),
        ("print(model)", {"model": 1}),
        ("def f():\n    return model", {"model": 2}),
        ("def f(model):\n    return model", {}),
        ("[x for x in range(3)]", {}),
        ("[x for x in items]\nz", {"items": 1, "z": 2}),
        ("class A:\n    y = 1\n    def g(self):\n        return y", {"y": 4}),
        ("def f():\n    global g\n    g = 1\nf()\nprint(g)", {}),
        ("import os.path as p\np.sep; os.sep", {"os": 2}),
        ("from torch import *\nwhatever", {}),
        ("try:\n    pass\nexcept ValueError as e:\n    e", {}),
        ("with open('x') as f:\n    f.read()", {}),
        ("lambda a: a + b", {"b": 1}),
        ("@wrap\ndef f(): ...", {"wrap": 1}),
        ("for i in range(2): pass\nprint(i, __name__, __file__)", {}),
        ("if (n := 3) > 2: print(n)", {}),
        ("z = [m := i for i in [1]]\nprint(m)", {}),  # Python 3.12 has another table of it
        ("def f(a=[w := 1 for _ in 'a']): ...\nw", {}),
        ("def f():\n    [m := i for i in [1]]\nm", {"m": 3}),
        ("class A:\n    x = __qualname__, __module__\n__builtins__", {}),
        ("match 3:\n    case k: print(k)", {}),
        ("total += 1", {}),  # Python itself says so: it is assigned here
    ],
)
def test_names_that_a_cell_does_not_define(source: str, missing: dict[str, int]) -> None:
    assert missing_names(source) == missing


@pytest.mark.parametrize(
    ("source", "include", "said"),
    [
        (
            "model.train()",
            (),
            "line 2: `model` is defined in your notebook, not in this cell: each",
        ),
        ("x = 1\nrate * x", (), "line 3: `rate` is defined in your notebook.*argument after --"),
        ("math.pi", (), "Add `import math` to the cell"),
        ("np.pi", (), "Add `import math as np` to the cell"),
        ("Path('x')", (), "Add `from pathlib import Path` to the cell"),
        ("double(1)", (), "Take it along: --include double"),
        ("Net()", (), "Take it along: --include Net"),
        ("modle", (), "`modle` is defined neither in this cell nor in your notebook"),
        ("display(3)", (), "`display` is the notebook's own"),
        ("!pip install x", (), r"cell \[7\], line 2: `!pip install x`: IPython's own syntax"),
        ("%time f()", (), "IPython's own syntax"),
        ("x = (1", (), r"cell \[7\], line 2: `x = \(1`: '\(' was never closed"),
        ("await x", (), "'await' outside function"),
        ("model", ("model",), "`model` is a object; only functions"),
        ("doubel", ("doubel",), "Did you mean double"),
        ("uses_data()", ("uses_data",), "`uses_data` uses `DATA`, a list of your notebook"),
        ("inner()", ("inner",), "`inner` is a closure over rate"),
        ("short(1)", ("short",), "A lambda has no source of its own"),
    ],
)
def test_what_a_cell_cannot_have(
    tmp_path: Path, source: str, include: tuple[str, ...], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        cell_script(tmp_path, source, NOTEBOOK, number=7, include=include)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    ("function", "arguments", "said"),
    [
        (closure(), (), "closure over rate"),
        (lambda: 0, (), "A lambda has no source"),
        (uses_data, (), "`uses_data` uses `DATA`, a list"),
        (functools.partial(double, 1), (), "is not a plain function"),
        (len, (), "is not a plain function"),
        (double, (object(),), "An argument is a object, which lives in this process only"),
    ],
)
def test_a_function_that_no_new_process_has(
    store: Path, function: Any, arguments: tuple[Any, ...], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        wb.request(function, arguments, store=store)


def test_lines_of_the_script_are_the_cells(tmp_path: Path) -> None:
    source = "from __future__ import annotations\nx = double(2)\nraise ValueError(x)\n"
    script = cell_script(tmp_path, source, NOTEBOOK, number=12, include=("double",))
    lines = script.read_text().splitlines()
    assert lines[2:] == source.splitlines()[1:]
    ast.parse(script.read_text())
    compile(script.read_text(), "cell", "exec")
    tree = frames.code_tree({"script": str(script)})
    raised = frames.ChainedException("ValueError", "8", (frames.Line(str(script), 4, "<module>"),))
    assert frames.failure([raised], tree).where == "cell [12], line 4 in <module>"
    text = f'Traceback (most recent call last):\n  File "{script}", line 4, in <module>\n'
    assert "\n  cell [12], line 4, in <module>" in frames.with_cells(text)


def test_what_is_taken_along_defines_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["__main__"], "__file__", __file__, raising=False)
    values: dict[str, Any] = {}
    exec(included_source(["Net"], NOTEBOOK), values)
    assert values["Net"]().forward(3) == 48  # with its base, its function, a constant and a module
    assert "DATA" not in values


def test_arguments_of_a_function_are_read_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = (3, 1e-4, "base", "3", [1, {"a": None}], True)
    script = function_script(tmp_path, print_all)
    words = as_words(given)
    assert words[2] == "base"
    monkeypatch.setattr(sys, "argv", [str(script), *words])
    monkeypatch.setattr(sys, "path", [*sys.path])
    exec(compile(script.read_text(), str(script), "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out.strip() == repr(given)


def test_a_module_that_the_notebook_finds_by_its_path_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "my src"
    source.mkdir()
    (source / "mine_by_path.py").write_text("def train(rate):\n    print('trains', rate)\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(source)])
    module = importlib.import_module("mine_by_path")
    script = function_script(tmp_path, module.train)
    cell = cell_script(tmp_path, "from mine_by_path import train\ntrain(1)", {}, number=4)
    for place, words in ((script, ["0.5"]), (cell, [])):
        line = [sys.executable, "-S", str(place), *words]
        done = subprocess.run(line, capture_output=True, text=True, check=False, cwd=tmp_path)
        assert "trains" in done.stdout, done.stderr
        assert "site-packages" not in place.read_text()


def test_numbers_of_any_kind_are_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    numpy = pytest.importorskip("numpy")
    given = (numpy.float64(0.5), numpy.int64(3), math.inf, -math.inf, math.nan, "float('nan')")
    script = function_script(tmp_path, print_all)
    monkeypatch.setattr(sys, "argv", [str(script), *as_words(given)])
    monkeypatch.setattr(sys, "path", [*sys.path])
    exec(compile(script.read_text(), str(script), "exec"), {"__name__": "__main__"})
    shown = capsys.readouterr().out.strip()
    assert shown == """(0.5, 3, inf, -inf, nan, "float('nan')")"""


def print_all(*values: Any) -> None:
    print(values)


def test_a_run_keeps_its_own_copy(tmp_path: Path) -> None:
    script = cell_script(tmp_path, "double(1)", NOTEBOOK, number=1, include=("double",))
    (tmp_path / "one").mkdir()
    first = kept_script(script, tmp_path / "one" / "cell")
    again = kept_script(first, tmp_path / "cell")  # a rerun copies from the run before it
    assert again.read_text() == script.read_text()
    assert {path.name for path in again.parent.iterdir()} == {"cell_1.py", "notebook_source.py"}
    plain = tmp_path / "train.py"
    plain.write_text("x = 1\n")
    assert kept_script(plain, tmp_path / "other") == plain


def test_the_line_takes_the_options_of_a_launch(capsys: pytest.CaptureFixture[str]) -> None:
    line = read_line("--strategy fsdp --nproc 4 --recompute full --include a,b -- --lr 3e-4 x")
    assert line is not None
    assert (line.options.strategy, line.options.processes) == ("fsdp", 4)
    assert line.options.options == {"recompute": "full"}
    assert (line.include, line.arguments) == (("a", "b"), ("--lr", "3e-4", "x"))
    assert read_line("--help") is None
    assert "--devices" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--stratgy fsdp", "No such option"),
        ("--nproc x", "whole number|not a valid"),
        ("4", "takes options, and '4' is none"),
        ("--name 'a", "Close the quotation marks"),
        ("--nproc", "requires an argument"),
    ],
)
def test_a_line_that_is_none(line: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        read_line(line)


def write_down(path: str, *values: Any) -> None:
    Path(path).write_text(repr(values), encoding="utf-8")


write_down.__module__ = "__main__"


def test_a_function_runs_and_its_run_keeps_it(store: Path, tmp_path: Path) -> None:
    told = tmp_path / "told"
    run = wb.launch(
        write_down, [str(told), 3, [0.5]], cpu=True, processes=1, store=store, warm=True
    )
    assert run.wait() == "no-steps"  # it trains nothing
    assert told.read_text() == "(3, [0.5])"
    assert run.document["script"] == str(run.directory / "cell" / "write_down.py")
    assert not list((store / ".cells").iterdir())


def test_a_function_whose_launch_is_refused_leaves_no_script(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError):
        wb.launch(write_down, [], cpu=True, strategy="no-such", store=store)

    def full(*_: Any, **_more: Any) -> None:
        raise OSError("no process can be started")

    monkeypatch.setattr(start_module, "spawn_supervisor", full)
    with pytest.raises(StoreError):
        wb.launch(write_down, ["x", 3], cpu=True, processes=1, store=store)
    assert not list((store / ".cells").iterdir())


def test_a_cell_keeps_characters_that_only_text_takes_for_line_ends(tmp_path: Path) -> None:
    source = 'x = "a\u2028b\x85c"\nassert len(x) == 5\n'
    script = cell_script(tmp_path, source, {})
    exec(compile(script.read_text("utf-8"), "s", "exec"), {})
