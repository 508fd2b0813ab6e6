"""All exceptions of the workbench.

::

    WorkbenchError
    ├── UsageError (ValueError)           what was asked for cannot be; says what is allowed
    │   ├── UnknownNameError              a name nobody knows; says the nearest ones
    │   └── RunNotFoundError (LookupError)  no such run in this store
    ├── StoreError (OSError)              the run store cannot be read or written
    │   └── ForeignRunError               a run of another user: it can be read only
    ├── StorageError (OSError)            an address cannot be read or written
    └── HostError                         this host lacks something the job needs

A message says what was given, what is allowed and what to do next.
"""

from __future__ import annotations

import difflib
import os
import re
import shlex
import sys
from collections.abc import Iterable

_LISTED = 24  # names in a message; a catalog has its own listing
_PACKAGES = re.compile(r"[\\/](?:(?:site|dist)-packages|workbench_widgets)[\\/]")
_LIBRARY, _OWN = (
    os.path.join(os.path.dirname(os.path.abspath(file)), "")  # noqa: PTH100, PTH118, PTH120
    for file in (os.__file__, __file__)
)


class WorkbenchError(Exception):
    """Anything the workbench raises on purpose."""

    def _render_traceback_(self) -> list[str]:
        """What IPython shows below a cell: the caller's own lines and the message.

        The frames in between are ours; ``traceback.print_exception`` of the error has them.
        """
        return [*_callers(self), f"\x1b[31m{type(self).__name__}\x1b[0m: {self}"]


class UsageError(WorkbenchError, ValueError):
    """The request cannot be carried out as it is; the message says what would work."""


class UnknownNameError(UsageError):
    """A name that is not in its list, with the nearest ones."""

    @classmethod
    def near(cls, kind: str, name: str, allowed: Iterable[str]) -> UnknownNameError:
        """Build the error for `name`, listing near misses or else everything in `allowed`."""
        names = sorted(allowed)
        close = difflib.get_close_matches(name.lower(), names, n=3, cutoff=0.5)
        known_names = ", ".join(names[:_LISTED])
        if len(names) > _LISTED:
            known_names += f" and {len(names) - _LISTED} more"
        hint = f"Did you mean {' or '.join(close)}?" if close else f"Known: {known_names}."
        return cls(f"Unknown {kind} {name!r}. {hint}")


class RunNotFoundError(UsageError, LookupError):
    """No run of that id or name in the store."""


class StoreError(WorkbenchError, OSError):
    """The run store, or a file in it, cannot be read or written."""


class ForeignRunError(StoreError):
    """The run belongs to another user, others can write to it, or its record is from elsewhere."""


class StorageError(WorkbenchError, OSError):
    """An object store or volume cannot be read or written, or what lies there is damaged."""


class HostError(WorkbenchError):
    """This host lacks something that the job needs; the message says how to get it."""


def _callers(error: BaseException) -> list[str]:
    """The lines of cells and own modules that led to an error, outermost first."""
    import traceback  # noqa: PLC0415 - only a notebook needs it

    lines: list[str] = []
    for frame in traceback.extract_tb(error.__traceback__):
        place = frame.filename
        if place.startswith((_LIBRARY, _OWN, "<frozen")) or _PACKAGES.search(place):
            continue
        cell = "ipykernel" in place or place.startswith("<ipython")
        where = f"Cell line {frame.lineno}" if cell else f"{place}:{frame.lineno}"
        lines.append(f"{where}: {frame.line}" if frame.line else where)
    return lines


def pip_install(*packages: str) -> str:
    """The command that installs them for this Python, whatever `pip` a shell would find.

    >>> pip_install("trl", "datasets").endswith(" -m pip install trl datasets")
    True
    """
    return f"{shlex.quote(sys.executable)} -m pip install {shlex.join(packages)}"


def sentence(error: Exception) -> str:
    """The message of an error made for people; of any other, its type too."""
    if isinstance(error, WorkbenchError | ValueError) and str(error):
        return str(error)
    return f"{type(error).__name__}: {error}"
