"""A file of the user's that has the name of a module which the command needs, and hides it.

Nothing may be imported here but what Python has loaded already: it could be the next one hidden.
"""

from __future__ import annotations

import importlib.machinery
import os
import sys

PACKAGES = frozenset(
    {
        *("annotated_doc", "annotated_types", "certifi", "charset_normalizer", "click", "gpuhunt"),
        *("idna", "markdown_it", "mdurl", "psutil", "pydantic", "pydantic_core", "pygments"),
        *("pynvml", "requests", "rich", "shellingham", "typer", "typing_extensions"),
        *("typing_inspection", "urllib3"),
    }
)
"""What the commands import: our dependencies and theirs."""


class HiddenModuleError(ImportError):
    """A file of the user's would have been imported, and run, in place of a package."""


class PackageGuard:
    """First of the finders of modules: refuses a file that hides one of `PACKAGES`, unexecuted.

    As an import it would run the user's script: train, or end the command without a word.
    """

    @staticmethod
    def find_spec(name: str, path: object = None, _target: object = None) -> None:
        """Leave the import to the finders after this one, or refuse it.

        Raises:
            HiddenModuleError: a file that is not a package's has its name and comes before it.
        """
        if path is not None or name not in PACKAGES:
            return
        spec = importlib.machinery.PathFinder.find_spec(name)
        file = spec and spec.origin
        if file and _hidden_by(file) is not None:
            raise HiddenModuleError(f"it is not the package {name}", name=name, path=file)


def explanation(error: BaseException) -> str | None:
    """Which file of the user's stands in for a module of Python's or a package; None: none does."""
    library = os.path.dirname(os.__file__)  # noqa: PTH120
    for path in _files_of(error):
        hidden = None if path.startswith(library + os.sep) else _hidden_by(path)
        if hidden is not None:
            folder = _module_at(path)[0]
            refused = isinstance(error, HiddenModuleError)
            why = "" if refused else f": {type(error).__name__}: {error}"
            return (
                f"error: {path} shadows {hidden}, so workbench cannot run{why}.\n"
                f"Next: rename that file, or {_leave(folder)}.\n"
            )
    return None


def _hidden_by(path: str) -> str | None:
    """What a file stands in for; None where it hides nothing, or was installed as a package."""
    folder, name = _module_at(path)
    places = [os.path.abspath(entry) for entry in sys.path]  # noqa: PTH100
    if folder not in places:
        return None
    if name in sys.stdlib_module_names:
        return f"Python's standard module {name}"
    other_places = [entry for entry in places if entry != folder and _has_packages(entry)]
    if (
        _has_packages(folder)
        or importlib.machinery.PathFinder.find_spec(name, other_places) is None
    ):
        return None
    return f"the package {name}"


def _module_at(path: str) -> tuple[str, str]:
    """The folder on the search path and the name under which a file is imported."""
    folder, file = os.path.split(os.path.abspath(path))  # noqa: PTH100
    if file == "__init__.py":
        folder, file = os.path.split(folder)
    return folder, file.removesuffix(".py")


def _has_packages(folder: str) -> bool:
    """Whether something was installed there, as pip does it."""
    try:
        return any(name.endswith((".dist-info", ".egg-info")) for name in os.listdir(folder))
    except OSError:
        return False


def _leave(folder: str) -> str:
    entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if folder in map(os.path.abspath, entries if entries != [""] else ()):
        return f"remove {folder} from PYTHONPATH"
    return "call workbench from another folder"


def _files_of(error: BaseException) -> list[str]:
    """Files that the error went through, innermost first, and the one that an import names."""
    files: list[str] = []
    place = error.__traceback__
    while place is not None:
        files.append(place.tb_frame.f_code.co_filename)
        place = place.tb_next
    error_path = getattr(error, "path", None) or getattr(error, "filename", None)
    if isinstance(error_path, str):
        files.append(error_path)
    elif isinstance(error, AttributeError):
        files.append(getattr(getattr(error, "obj", None), "__file__", None) or "")
    return [os.path.abspath(path) for path in reversed(files)]  # noqa: PTH100
