"""Every notebook can be gone through again: each cell twice, any earlier cell, the whole of it.

What cells say of each other's names is read off their code, in no time; the full tests execute each
cell twice in a row, and then all of them once more in the same kernel.
"""

from __future__ import annotations

import builtins
import dis
import re
import types
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest

from tests import user_environment
from tests.widgets.notebook_run import ROOT, read

NAMES = sorted(path.stem for path in (ROOT / "notebooks").glob("*.ipynb"))
MEASURED = (
    "11_measure_before_you_rent"  # whether a measurement was predicted depends on the machine
)
EXTRAS = {"14_your_own_model": ("finetune", "trl"), "15_sweeps": ("sweep", "optuna")}
"""Which notebook asks for which extra, and a package of it."""
REMEMBER = """
import workbench as wb

def remembering(launch, done):
    def answered(target, *given, **options):
        script = pathlib.Path(target)
        key = repr((target, given, options, script.is_file() and script.read_text()))
        old = None if "name" in options else done.get(key)
        if old is None or old.outcome != "succeeded":
            done[key] = launch(target, *given, **options)
        return done[key]
    return answered

if __name__ == "__main__":
    import pathlib
    wb.launch = remembering(wb.launch, {})
"""


class Cell:
    """The names that a cell binds, those that it takes from others, and what its functions read."""

    def __init__(self, source: str) -> None:
        self.binds, self.takes = set[str](), set[str]()
        self.renews = set[str]()
        """Bound here, after what another cell bound was read: not the same when run again."""
        self.functions: dict[str, set[str]] = {}
        lines = [line for line in source.splitlines() if not line.startswith(("%", "!"))]
        code = compile("\n".join(lines), "cell", "exec")
        for one in dis.get_instructions(code):
            if one.opname.startswith("STORE_"):
                self.renews |= {one.argval} & self.takes
                self.binds.add(one.argval)
            elif one.opname.startswith("LOAD_NAME"):
                self.take({one.argval})
            elif isinstance(inner := one.argval, types.CodeType):
                if inner.co_name.startswith("<"):  # of a comprehension or a lambda
                    self.take(set(reads(inner)))
                else:
                    self.functions[inner.co_name] = set(reads(inner))

    def take(self, names: set[str]) -> None:
        self.takes |= names - self.binds - set(dir(builtins))


def reads(code: types.CodeType) -> Iterator[str]:
    """The global names that a function reads."""
    for one in dis.get_instructions(code):
        if one.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield one.argval
        elif isinstance(one.argval, types.CodeType):
            yield from reads(one.argval)


def doubts(sources: list[str]) -> Iterator[str]:
    """What would differ if a cell were run again after later ones."""
    cells = {number: Cell(source) for number, source in enumerate(sources) if source[:2] != "%%"}
    functions = {name: read for cell in cells.values() for name, read in cell.functions.items()}
    binders = defaultdict[str, list[int]](list)
    for number, cell in cells.items():
        for name in cell.binds:
            binders[name].append(number)
    for number, cell in cells.items():
        taken, todo = set(cell.takes), [*cell.takes, *cell.functions]
        while todo:  # what is called reads, too
            more = functions.get(todo.pop(), set()) - taken - cell.binds
            taken |= more
            todo += more
        yield from (f"code cell {number} renews {name}" for name in sorted(cell.renews))
        for name in sorted(taken):
            if len(binders[name]) > 1:
                yield f"code cell {number} reads {name}, which cells {binders[name]} bind"


@pytest.mark.parametrize("name", NAMES)
def test_what_a_cell_takes_is_bound_by_one_other(name: str) -> None:
    code = [cell.source for cell in read(name).cells if cell.cell_type == "code"]
    assert not list(doubts(code))


@pytest.mark.parametrize(
    ("sources", "doubt"),
    [
        (["a = 1", "a += 1"], "code cell 1 renews a"),
        (["a = 1", "b = [a for _ in range(3)]\na = b"], "code cell 1 renews a"),
        (["a = 1", "print(a)", "a = 2"], "code cell 1 reads a, which cells [0, 2] bind"),
        (["def f(): return a\na = 1", "f()", "a = 2"], "code cell 1 reads a, which cells [0, 2]"),
        (["a = 1\nprint(a)", "for a in range(3): print(a)"], None),
        (["def f(a): return a", "f(1)", "a = 2\nf(a)"], None),
    ],
)
def test_what_would_differ_is_seen(sources: list[str], doubt: str | None) -> None:
    found = list(doubts(sources))
    assert any(one.startswith(doubt) for one in found) if doubt else not found


def test_the_cell_for_after_a_restart_needs_no_other(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("anywidget", reason="the lab extra is not installed")
    monkeypatch.setenv("WORKBENCH_STORE", str(store))
    cells = read("00_start_here").cells
    (before,) = [at for at, cell in enumerate(cells) if "## After a kernel restart" in cell.source]
    *body, last = cells[before + 1].source.splitlines()
    names: dict[str, object] = {}
    exec("\n".join(body), names)
    assert eval(last, names) == "No run yet: press Launch above first."


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", NAMES)
def test_each_cell_can_be_run_again_and_all_of_them(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    extra, *packages = EXTRAS.get(name, ("lab",))
    for package in ("anywidget", "accelerate", *packages):
        pytest.importorskip(package, reason=f"the train, lab or {extra} extra is not installed")
    client = pytest.importorskip("nbclient", reason="the lab extra is not installed")
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "notebooks"))  # where Jupyter's kernel starts
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("WORKBENCH_STORE", str(tmp_path / "runs"))
    monkeypatch.delenv("WORKBENCH_PRICES", raising=False)
    for variable, value in user_environment.variables(tmp_path, extra).items():
        monkeypatch.setenv(variable, value)
    code = [cell.source for cell in read(name).cells if cell.cell_type == "code"]
    sources = [REMEMBER, *(source for source in code for _ in range(2)), *code]
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(one) for one in sources])
    client.NotebookClient(book, timeout=300, kernel_name="python3").execute(cwd=str(tmp_path))
    said = [verdicts(cell) for cell in book.cells[1:]]
    first, second, third = (
        said[: 2 * len(code) : 2],
        said[1 : 2 * len(code) : 2],
        said[-len(code) :],
    )
    assert name == MEASURED or first == second == third


def verdicts(cell: nbformat.NotebookNode) -> list[str]:
    """The words of its output that are an answer: measured times differ between two runs."""
    texts = [one.get("text") or one.get("data", {}).get("text/plain", "") for one in cell.outputs]
    return re.findall(r"\b(?:True|False|Solved|Not yet|succeeded|reached|fits)\b", "".join(texts))
