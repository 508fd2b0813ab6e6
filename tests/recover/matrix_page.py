"""The checkpoint matrix in Markdown: a line per setting, then every cell that is not exact."""

from __future__ import annotations

from collections.abc import Iterable

from .matrix import CLOSE, EXACT, REFUSED, ROUNDING, Matrix

Cell = tuple[tuple[str, str], str]


def page(matrix: Matrix, about: str) -> str:
    """The whole page; `about` says what a cell is."""
    lines = ["# Checkpoint matrix", "", about, "", _count(matrix), ""]
    lines += ["| saved by | saved and verified | loaded exactly by | not by |", "|---|---|---|---|"]
    lines += [_row(matrix, one.name) for one in matrix.settings]
    refused = {cell: found for cell, found in matrix.wrong.items() if found.startswith(REFUSED)}
    wrong = {cell: found for cell, found in matrix.wrong.items() if cell not in refused}
    close = {cell: found for cell, found in matrix.cells.items() if found == CLOSE}
    lines += _listed("Wrong", wrong.items())
    lines += _listed("Exact, with a next step that differs by rounding", close.items(), ROUNDING)
    lines += _listed("Refused by the recipe, with its sentence", refused.items())
    lines += ["", "## Not offered: `launch` refuses the combination, with this sentence", ""]
    lines += [f"- {name}: {why}" for name, why in matrix.not_offered.items()]
    return "\n".join(lines) + "\n"


def _count(matrix: Matrix) -> str:
    layouts = len({one.layout for one in matrix.settings})
    exact = len(matrix.cells) - len(matrix.wrong)
    each = matrix.cpu_seconds / max(1, len(matrix.cells))
    return (
        f"{layouts} layouts, {len(matrix.settings)} settings, {len(matrix.cells)} cells, "
        f"{exact} exact; {matrix.cpu_seconds:.0f} CPU seconds, {each:.2f} per cell."
    )


def _row(matrix: Matrix, name: str) -> str:
    cells = {column: found for (row, column), found in matrix.cells.items() if row == name}
    saves = "yes" if cells.pop("saves", "") == EXACT else "no"
    wrong = [column for column in cells if (name, column) in matrix.wrong]
    exact = f"{len(cells) - len(wrong)} of {len(cells)}"
    return f"| {name} | {saves} | {exact} | {', '.join(wrong) or '-'} |"


def _listed(title: str, cells: Iterable[Cell], about: str = "") -> list[str]:
    found = [f"- {row} -> {column}: {what}" for (row, column), what in cells]
    return ["", f"## {title}", "", *([about, ""] if about else []), *found] if found else []
