"""The lessons: this project's notebooks, and a copy of them to work in."""

from __future__ import annotations

import shutil
import site
import sys
from dataclasses import dataclass
from pathlib import Path

from workbench.errors import HostError, UsageError

FOLDER = "lessons"
"""Where a copy is made unless told otherwise, below the working directory."""
_REPOSITORY = Path(__file__).parents[2]
_INSTALLED = "share/training-workbench/lessons"  # pyproject.toml: shared-data of the wheel


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiedLessons:
    """What a copy did."""

    folder: Path
    """Where the lessons are now."""
    copied: tuple[str, ...]
    """File names that are new there."""
    kept: tuple[str, ...]
    """File names that were there before; they are as they were."""


def lessons_folder() -> Path | None:
    """The notebooks as they came: of the repository, else of the installation; None = missing."""
    roots = [Path(sys.prefix), *([Path(site.USER_BASE)] if site.USER_BASE else [])]
    folders = [*(root / _INSTALLED for root in roots)]
    if (_REPOSITORY / "pyproject.toml").is_file():
        folders.insert(0, _REPOSITORY / "notebooks")
    return next((folder for folder in folders if lesson_files(folder)), None)


def lesson_files(folder: Path) -> list[Path]:
    """The lessons of a folder in their order, without the modules that they import."""
    return sorted(folder.glob("[0-9][0-9]_*.ipynb"))


def copy_lessons(target: Path | str = FOLDER) -> CopiedLessons:
    """Copy the lessons and what they import into a folder; what is there already stays.

    Raises:
        UsageError: `target` is a file.
        HostError: this installation has no lessons, or the folder cannot be written.
    """
    source, folder = lessons_folder(), Path(target).absolute()
    if source is None:
        raise HostError(
            "This installation has no lessons. Install the training-workbench again, or clone its "
            "repository: they are in notebooks/."
        )
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{target} is a file. Give a folder: workbench lessons FOLDER")
    copied, existing = list[str](), list[str]()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path in sorted([*source.glob("*.ipynb"), *source.glob("*.py")]):
            there = folder / path.name
            (existing if there.exists() else copied).append(path.name)
            if not there.exists():
                shutil.copyfile(path, there)
    except OSError as error:
        raise HostError(
            f"The lessons cannot be copied to {folder}: {error.strerror or error}. Give another "
            "folder: workbench lessons FOLDER"
        ) from error
    return CopiedLessons(folder=folder, copied=tuple(copied), kept=tuple(existing))
