"""Imported by Python itself in every process of a run, because this folder is on PYTHONPATH.

Loads the capture hook beside this folder, then the sitecustomize this one hides, if any. Silent on
failure: whatever goes wrong here, the user's script runs as if it had never been there.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

_HERE = os.path.dirname(os.path.abspath(__file__))


def _load(name: str, path: str, folder: str) -> ModuleType:
    from importlib import util  # noqa: PLC0415  (only when there is something to load)

    spec = util.spec_from_file_location(name, path, submodule_search_locations=[folder])
    if spec is None or spec.loader is None:
        raise ImportError(path)
    module = util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _start_capture() -> None:
    if not os.environ.get("WORKBENCH_RUN_DIR"):
        return
    folder = os.path.dirname(_HERE)
    try:
        _load("_workbench_capture", os.path.join(folder, "hook.py"), folder).install()
    except Exception as error:
        if os.environ.get("WORKBENCH_CAPTURE_DEBUG"):
            sys.stderr.write(f"workbench capture hook: {error!r}\n")


def _chain() -> None:
    """Become the sitecustomize that Python would have found without us."""
    from importlib import util  # noqa: PLC0415
    from importlib.machinery import PathFinder  # noqa: PLC0415

    folders = [folder for folder in sys.path if os.path.abspath(folder or os.getcwd()) != _HERE]
    spec = PathFinder.find_spec("sitecustomize", folders)
    if spec is None or spec.loader is None:
        return
    module = sys.modules["sitecustomize"] = util.module_from_spec(spec)
    spec.loader.exec_module(module)


_start_capture()
_chain()
