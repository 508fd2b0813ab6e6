"""The end of a fork: what the script made is taken apart, the libraries it shares are not.

An interpreter that ends clears every module, and its process every registry of C++. A fork copies
the server's pages first: a quarter of a CPU second with torch. So the script and its own modules
alone are cleared, as Python clears them; files are flushed, and the process leaves.

Python ends a process in its own way wherever that would not be the same: after an exception, beside
a thread of the script, or with a shared library that the script loaded, which may have something to
do at the exit.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import os
import re
import sys
import sysconfig
import threading
import types
import weakref
from collections.abc import Iterable

from .sameness import mapped_libraries

_OF_THE_HOOK = "workbench-"
"""How the names of the capture hook's threads begin; they use nothing of the script."""
_LONG_BITS = 63
"""Of a number that Python takes for an exit code as it is."""
_HARMLESS = re.compile(r"/lib-dynload/|/libnss_")
"""Libraries with nothing to do at the exit: Python's own, and those that look up a host's name."""
_LIBRARIES = (
    *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))),  # the hook's
)
"""Where modules lie that are not the script's own."""


class Ending:
    """Ends the process when its exit code is known and everything else allows it."""

    def __init__(self) -> None:
        self._last = atexit._ncallbacks() == 0  # noqa: SLF001  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue, reportUnknownMemberType]
        self._exit_code: int | None = None
        self._libraries = frozenset[str]()
        self._modules = dict[str, types.ModuleType]()
        atexit.register(self._leave)  # before all others, so it runs after them

    def libraries_are_loaded(self) -> None:
        """Take what is mapped now as the server's."""
        self._libraries = mapped_libraries()

    def script_begins(self) -> None:
        """Take what is imported from now on as the script's, and ``__main__``."""
        self._modules = {name: module for name, module in sys.modules.items() if name != "__main__"}

    def script_ended(self, end: SystemExit | None) -> None:
        """Note the exit code, unless Python has something to print for it."""
        code = 0 if end is None else end.code
        if code is None or (isinstance(code, int) and code.bit_length() <= _LONG_BITS):
            self._exit_code = (code or 0) & 0xFF

    def _leave(self) -> None:
        if self._exit_code is None or not self._last or _has_threads() or self._has_libraries():
            return
        try:
            _flush()
            _clear(self._own_modules())
            _flush()
        except Exception:  # noqa: BLE001  (Python meets it again, and says so)
            return
        ctypes.CDLL(None).fflush(None)
        os._exit(self._exit_code)

    def _has_libraries(self) -> bool:
        brought = mapped_libraries() - self._libraries
        return any(not _HARMLESS.search(path) for path in brought)

    def _own_modules(self) -> list[types.ModuleType]:
        loaded: dict[str, object] = dict(sys.modules)  # any object can stand there
        return [
            module
            for name, module in loaded.items()
            if isinstance(module, types.ModuleType)
            and self._modules.get(name) is not module
            and (name == "__main__" or _is_own(module))
        ]


def _is_own(module: types.ModuleType) -> bool:
    path = getattr(module, "__file__", None)
    return path is not None and not path.startswith(_LIBRARIES)


def _has_threads() -> bool:
    return any(
        not thread.name.startswith(_OF_THE_HOOK)
        for thread in threading.enumerate()
        if thread is not threading.main_thread()
    )


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError):  # none, or closed by the script
            stream.flush()


def _clear(modules: list[types.ModuleType]) -> None:
    """Forget the modules in the order in which Python does; empties the list."""
    own = {id(module) for module in modules}
    for name in [name for name, module in sys.modules.items() if id(module) in own]:
        sys.modules[name] = None  # pyright: ignore[reportArgumentType]
    references = [weakref.ref(module) for module in modules]
    modules.clear()
    gc.collect()
    for reference in reversed(references):
        if (module := reference()) is not None:
            _clear_names(module.__dict__)
    gc.collect()


def _clear_names(names: dict[str, object]) -> None:
    """Set private names to None first, then the others, as ``_PyModule_Clear``."""
    private = [name for name in names if name[:1] == "_" and name[:2] != "__"]
    public = [name for name in names if name not in private and name != "__builtins__"]
    _set_to_none(names, private)
    _set_to_none(names, public)


def _set_to_none(names: dict[str, object], which: Iterable[str]) -> None:
    for name in which:
        names[name] = None
