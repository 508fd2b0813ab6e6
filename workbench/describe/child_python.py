"""Python processes of our own that ask what this one cannot: their modules are this process's.

A child that is started with ``-c`` or ``-m`` looks for modules in the working directory first. That
may be anybody's folder, or a project with a ``logging.py`` of its own; `workbench` itself, where it
is started as a program, has it not on its path.
"""

from __future__ import annotations

import os
import sys

SAFE_PYTHON = (sys.executable, *(("-P",) if sys.version_info >= (3, 11) else ()))
"""As `store.processes.SAFE_PYTHON`, which no package to the left of `store` can import."""


def import_path() -> str:
    """This process's module path, for the child's PYTHONPATH."""
    return os.pathsep.join(entry or os.getcwd() for entry in sys.path)  # noqa: PTH109
