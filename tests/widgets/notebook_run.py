"""A notebook's text, a run of it, and what it said: for the tests of notebooks."""

from __future__ import annotations

import contextlib
import importlib
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest

from tests import user_environment

ROOT = Path(__file__).parents[2]


def read(name: str) -> nbformat.NotebookNode:
    return nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4)


def prose(name: str) -> str:
    """Every word of the text, line breaks left out."""
    text = [cell.source for cell in read(name).cells if cell.cell_type == "markdown"]
    return " ".join(" ".join(text).split())


def outputs(book: nbformat.NotebookNode) -> str:
    """What every cell printed; a stream may arrive in pieces, each stream begins a line."""
    texts = []
    for cell in book.cells:
        stream = None
        for output in cell.get("outputs", []):
            if output.get("name") != stream:
                texts.append("\n")
                stream = output.get("name")
            texts.append(output.get("text", "") or output.get("data", {}).get("text/plain", ""))
        texts.append("\n")
    return "".join(texts)


@contextlib.contextmanager
def beside(module: str) -> Iterator[Any]:
    """A file beside the notebooks, imported as they do; its torch threads are taken back."""
    torch = pytest.importorskip("torch", reason="the train extra is not installed")
    threads = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "notebooks"))
        yield importlib.import_module(module)
    torch.set_num_threads(threads)
    sys.modules.pop(module, None)


class Said:
    """What a notebook printed, the numbers in it, and the folder in which it ran."""

    def __init__(self, text: str, folder: Path = Path()) -> None:
        self.text = text
        self.folder = folder

    def has(self, *patterns: str) -> None:
        for pattern in patterns:
            assert re.search(pattern, self.text, re.MULTILINE), pattern

    def number(self, pattern: str) -> float:
        """The first match's group, read as a number."""
        found = re.search(pattern, self.text, re.MULTILINE)
        assert found, pattern
        return float(found[1].replace(",", ""))

    def within(self, low: float, pattern: str, high: float) -> None:
        value = self.number(pattern)
        assert low <= value <= high, f"{pattern}: {value} is not within {low} to {high}"


def runner(factory: pytest.TempPathFactory, *extras: str) -> Callable[[str], Said]:
    """Executes each notebook once, with the packages of `make lab` and `extras`; no own prices."""
    done: dict[str, Said] = {}

    def executed(name: str) -> Said:
        if name not in done:
            client = pytest.importorskip("nbclient")
            folder, book = factory.mktemp(name), read(name)
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("HOME", str(folder))
                patch.setenv("WORKBENCH_STORE", str(folder / "runs"))
                patch.delenv("WORKBENCH_PRICES", raising=False)
                for variable, value in user_environment.variables(folder, *extras).items():
                    patch.setenv(variable, value)
                executor = client.NotebookClient(book, timeout=300, kernel_name="python3")
                executor.execute(cwd=str(folder))
            done[name] = Said(outputs(book), folder)
        return done[name]

    return executed


def assert_form(book: nbformat.NotebookNode) -> None:
    """Short, without outputs, and prose on both sides of each code cell."""
    assert len(book.cells) <= 40
    code = [cell for cell in book.cells if cell.cell_type == "code"]
    assert all(not cell.outputs and cell.execution_count is None for cell in code)
    assert sorted(len(cell.source.splitlines()) for cell in code)[len(code) // 2] <= 5
    kinds = [cell.cell_type for cell in book.cells]
    assert kinds[::2] == ["markdown"] * len(kinds[::2])
    assert kinds[1::2] == ["code"] * len(kinds[1::2])


def assert_short_and_clean(name: str) -> None:
    book = read(name)
    assert_form(book)
    assert "$" not in prose(name)  # JupyterLab would set what lies between two of them as a formula
    assert max(len(line) for cell in book.cells for line in cell.source.splitlines()) <= 120


def assert_exercise(name: str, start: str, answers: dict[str, str], wrong: str | None) -> None:
    """The cell that contains `start`, with these answers: right, or wrong with that hint."""
    (source,) = [cell.source for cell in read(name).cells if start in cell.source]
    for variable, value in answers.items():
        source = source.replace(f"{variable} = None", f"{variable} = {value}")
    if wrong is None:
        exec(source, {})
    else:
        with pytest.raises(AssertionError, match=re.escape(wrong)):
            exec(source, {})


def run_beside_helpers(factory: pytest.TempPathFactory, name: str) -> Said:
    """A run of a notebook that imports a file beside it, as where Jupyter's kernel starts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT / "notebooks"))
        return runner(factory)(name)
