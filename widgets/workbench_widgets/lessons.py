"""The lessons of ``notebooks/`` as a list, for the tab Learn."""

from __future__ import annotations

import html
import json
from pathlib import Path

import ipywidgets as widgets

from workbench_widgets.jupyter_files import served_path

_FOLDER = Path(__file__).parents[2] / "notebooks"
_LINK = "color:var(--jp-content-link-color,#1565c0);text-decoration:underline"
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
    """The lessons, to open with a click where the Jupyter server has them, else by their names."""
    titles = lesson_titles(folder)
    if not titles:
        return widgets.VBox([widgets.Label(_NO_LESSONS)])
    served = served_path(folder)
    if served is None:
        place = f"Open a lesson from {folder} in the file browser:"
        lines = [place, *(f"{name}: {title}" for name, title in titles.items())]
        return widgets.VBox([widgets.Label(line) for line in lines])
    links = [_link(f"{served}/{name}".lstrip("/"), title) for name, title in titles.items()]
    return widgets.VBox([widgets.HTML(f"<ol start='0'>{''.join(links)}</ol>")])


def _link(path: str, title: str) -> str:
    """A list item that JupyterLab and Notebook 7 open as a document (their command linker)."""
    arguments = html.escape(json.dumps({"path": path}))
    command = f'data-commandlinker-command="docmanager:open" data-commandlinker-args="{arguments}"'
    return f'<li><a href="#" style="{_LINK}" {command}>{html.escape(title)}</a></li>'
