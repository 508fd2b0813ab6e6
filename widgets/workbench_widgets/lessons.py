"""``Lessons``: the notebooks of ``notebooks/`` as a list, in the tab Learn."""

from __future__ import annotations

import json
from pathlib import Path

from workbench_widgets.face import Face
from workbench_widgets.fallback_output import face_config
from workbench_widgets.jupyter_files import served_path

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


class Lessons(Face):
    """The lessons, to open with a click where the Jupyter server has them, else by their names.

    Args:
        folder: Where the notebooks are.
    """

    def __init__(self, folder: Path = _FOLDER) -> None:
        self._titles, served = lesson_titles(folder), served_path(folder)
        lessons = [
            {
                "path": None if served is None else f"{served}/{name}".lstrip("/"),
                "name": name,
                "title": title,
            }
            for name, title in self._titles.items()
        ]
        self._hint = "" if lessons else _NO_LESSONS
        if lessons and served is None:
            self._hint = f"Open a lesson from {folder} in the file browser:"
        super().__init__(face_config(face="lessons.js", hint=self._hint, lessons=lessons))

    def __repr__(self) -> str:
        """Plain text for terminals and saved notebooks."""
        lines = [self._hint, *(f"{name}: {title}" for name, title in self._titles.items())]
        return "\n".join(filter(None, lines))
