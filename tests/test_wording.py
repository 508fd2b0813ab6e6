"""Sentences that users read are plain, modern English: no archaic turns in messages, help, panels."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ARCHAIC = re.compile(
    r"(?<![Tt]here )\b(?:is|are|was|were) no (?!longer\b|more\b)\w+"
    r"|\b(?:nobody|somebody|anybody|whom|whoever|whosoever|upon|hence|thereof|anew|beforehand)\b"
    r"|\b(?:for good|for ever|at work|in vain|any more|so often|one's own|of one's|give way)\b"
    r"|\b(?:takes? it away|knows? no|tells? (?:of|nothing)|goes? on|gone on)\b"
)


def _docstrings(tree: ast.Module) -> set[ast.AST]:
    """Every string that stands as a statement of its own: docstrings and field docstrings."""
    return {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }


def _sentences(path: Path) -> list[tuple[int, str]]:
    """Line and text of each string with a space in it; fields of f-strings are ``{}``."""
    if path.suffix == ".js":
        lines = enumerate(path.read_text().splitlines(), 1)
        return [(n, text) for n, line in lines for text in re.findall(r'"([^"]* [^"]*)"', line)]
    tree = ast.parse(path.read_text())
    skipped = _docstrings(tree)
    found: list[tuple[int, str]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            skipped |= set(node.values)
            parts = [part.value if isinstance(part, ast.Constant) else "{}" for part in node.values]
            found.append((node.lineno, "".join(map(str, parts))))
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in skipped:
            found.append((node.lineno, node.value))
    return [(line, text) for line, text in found if " " in text]


def _archaic(path: Path) -> list[str]:
    """The file's sentences with an archaic turn. Regular expressions are data, not sentences."""
    joined = re.sub(r'"\s*\n\s*f?"', "", path.read_text())
    if not ARCHAIC.search(joined):  # most files: parsing them would cost seconds
        return []
    return [
        f"{path.relative_to(ROOT)}:{line}: {match[0]!r} in {text!r}"
        for line, text in _sentences(path)
        if (match := ARCHAIC.search(text)) and not re.search(r"\\[wdS]|\|", text)
    ]


def test_the_pattern_finds_what_it_is_for() -> None:
    for text in ("loss<two is no number", "nobody hears it", "the run goes on", "gone for good"):
        assert ARCHAIC.search(text), text
    for text in ("it is no longer listed", "the file is not a checkpoint", "the run continues"):
        assert not ARCHAIC.search(text), text


@pytest.mark.slow  # reads every file
def test_no_archaic_sentences() -> None:
    folders = (ROOT / "workbench", ROOT / "widgets" / "workbench_widgets")
    files = [
        path for folder in folders for path in folder.rglob("*") if path.suffix in {".py", ".js"}
    ]
    assert len(files) > 400
    assert not [line for path in files for line in _archaic(path)]


def _prose() -> list[tuple[str, str]]:
    """Place and text of what people read outside messages: pages, notebooks, recipes."""
    pages = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", *ROOT.glob("environments/*.md")]
    found = [(str(page), (ROOT / page).read_text()) for page in pages]
    for path in ROOT.glob("notebooks/*.ipynb"):
        cells = json.loads(path.read_text())["cells"]
        text = [cell["source"] for cell in cells if cell["cell_type"] == "markdown"]
        found.append((path.name, " ".join(map("".join, text))))
    for path in (ROOT / "workbench" / "recipes").glob("*.py"):
        tree = ast.parse(path.read_text())
        kinds = ast.Module | ast.ClassDef | ast.FunctionDef
        text = [ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, kinds)]
        found.append((path.name, " ".join(filter(None, text))))
    return [(place, " ".join(text.split())) for place, text in found]


def test_no_archaic_prose() -> None:
    prose = _prose()
    assert len(prose) > 40
    assert not [
        f"{place}: …{text[max(0, match.start() - 60) : match.end() + 60]}…"
        for place, text in prose
        for match in ARCHAIC.finditer(text)
    ]
