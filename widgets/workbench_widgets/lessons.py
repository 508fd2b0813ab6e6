"""The lessons of ``notebooks/`` as a list, for the tab Learn."""

from __future__ import annotations

import json
from pathlib import Path

import ipywidgets as widgets

_FOLDER = Path(__file__).parents[2] / "notebooks"
_NO_LESSONS = (
    "The lessons are notebooks of the repository, in its folder notebooks/. This installation has "
    "none: clone the repository to work through them."
)


def lesson_titles(folder: Path = _FOLDER) -> dict[str, str]:
    """File name -> title of each lesson, in order; the title is the notebook's first heading."""
    return {path.name: _title(path) for path in sorted(folder.glob("[0-9][0-9]_*.ipynb"))}


def _title(path: Path) -> str:
    try:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        lines = (line for cell in cells for line in "".join(cell["source"]).splitlines())
        return next(line.lstrip("# ") for line in lines if line.startswith("#"))
    except (OSError, ValueError, KeyError, StopIteration):
        return path.stem


def lesson_list(folder: Path = _FOLDER) -> widgets.VBox:
    """What the lessons are about and where they lie."""
    titles = lesson_titles(folder)
    if not titles:
        return widgets.VBox([widgets.Label(_NO_LESSONS)])
    place = f"Open a lesson from {folder} in the file browser:"
    lines = [place, *(f"{name}: {title}" for name, title in titles.items())]
    return widgets.VBox([widgets.Label(line) for line in lines])
