"""The command line: ``workbench …``.

`entry` is the application, `commands` the list of its commands, `live` the terminal view.
"""

from __future__ import annotations

import os
import sys

__all__ = ["main"]


def main() -> None:
    """Entry point; loads Typer, and a command's own parts, only when a command really runs."""
    try:
        from workbench.cli.entry import run_app  # noqa: PLC0415

        run_app()
    except KeyboardInterrupt:
        sys.stderr.write("Interrupted before any work was done.\n")
        sys.exit(130)
    except Exception as error:
        text = _hidden_module(error)
        if text is None:
            raise
        sys.stderr.write(text)
        sys.exit(1)


def _hidden_module(error: Exception) -> str | None:
    """Says which file of the user's stands in for a module of Python's own; None: none does.

    Nothing may be imported here: it could be the next module that is hidden.
    """
    library = os.path.dirname(os.__file__)  # noqa: PTH120
    seen = [path for path in _files_of(error) if not path.startswith(library + os.sep)]
    for path in seen:
        folder, file = os.path.split(path)
        if file == "__init__.py":
            folder, file = os.path.split(folder)
        name = file.removesuffix(".py")
        if name in sys.stdlib_module_names and folder in map(os.path.abspath, sys.path):
            return (
                f"error: {path} shadows Python's standard module {name}, so workbench cannot run: "
                f"{type(error).__name__}: {error}.\nNext: rename that file, or remove {folder} "
                "from PYTHONPATH.\n"
            )
    return None


def _files_of(error: Exception) -> list[str]:
    """Files that the error went through, innermost first, and the one that an import names."""
    files: list[str] = []
    place = error.__traceback__
    while place is not None:
        files.append(place.tb_frame.f_code.co_filename)
        place = place.tb_next
    named = getattr(error, "path", None) or getattr(error, "filename", None)
    if isinstance(named, str):
        files.append(named)
    elif isinstance(error, AttributeError):
        files.append(getattr(getattr(error, "obj", None), "__file__", None) or "")
    return [os.path.abspath(path) for path in reversed(files)]  # noqa: PTH100
