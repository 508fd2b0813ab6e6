"""The exit code of a script: read where it asks for one, and not changed by our own work."""

from __future__ import annotations

import builtins
import contextlib
import functools
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any, NoReturn

_LONG_BITS = 63  # Python takes a number that is no C long for -1


def of_status(status: object) -> int:
    """The process's exit code for what the script gave to ``sys.exit``.

    >>> [of_status(status) for status in (None, 3, True, 300, "no such model", 2**70)]
    [0, 3, 1, 44, 1, 255]
    """
    if status is None:
        return 0
    if not isinstance(status, int):
        return 1
    return status & 0xFF if status.bit_length() <= _LONG_BITS else 0xFF


def of_exception(kind: type[BaseException]) -> int:
    """The process's exit code for an exception that no one catches; negative = by that signal."""
    return -signal.SIGINT if kind is KeyboardInterrupt else 1


def watch(asked: Callable[[int], None]) -> None:
    """Call `asked` with each exit code that the script asks for in a way that ends this process.

    A thread's ``sys.exit`` ends the thread, one of an exit handler nothing, one of a fork the fork.
    """
    owner = os.getpid()

    def note(status: object) -> None:
        main = threading.main_thread()
        if os.getpid() == owner and threading.current_thread() is main and main.is_alive():
            asked(of_status(status))

    exit_function = sys.exit

    @functools.wraps(exit_function)
    def leave(status: Any = None, /) -> NoReturn:
        note(status)
        exit_function(status)  # raises SystemExit

    sys.exit = leave
    quitter: Any = type(builtins.exit)  # of `exit` and `quit`: it closes the input, too
    call = quitter.__call__

    @functools.wraps(call)
    def quit_interpreter(self: Any, code: Any = None) -> None:
        note(code)
        call(self, code)

    quitter.__call__ = quit_interpreter


def keep_interrupt(value: BaseException) -> None:
    """To be called after work that follows upon the exception that ends the script.

    Python ends itself by SIGINT where the last code that it ran from a text raised
    KeyboardInterrupt. Ours runs some: a dataclass is made by ``exec``, a named tuple by ``eval``.
    """
    if type(value) is KeyboardInterrupt and getattr(sys, "last_value", None) is value:
        with contextlib.suppress(KeyboardInterrupt):
            exec("raise KeyboardInterrupt")  # noqa: S102
