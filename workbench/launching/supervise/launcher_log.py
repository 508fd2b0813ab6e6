"""The last words of a launcher without the secrets among its script's arguments.

Where the one process of a run failed, Accelerate's launcher names its whole command. That is not
what the script printed itself, and the log is shown, pushed and mirrored.
"""

from __future__ import annotations

import ast
import os
import re
from pathlib import Path

from workbench.store.secrets import hide_known, redact_arguments

_LAST_BYTES = 1 << 20
_COMMAND = re.compile(
    rb"(?<=CalledProcessError: Command ')\[.*\](?=' (?:returned non-zero|died with) )"
)


def hide_command(path: Path) -> None:
    """Hide the secrets of the command that the launcher has named last; it has ended.

    Raises:
        OSError: the log cannot be read or written, or is a link.
    """
    try:
        handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:  # it was never started
        return
    with os.fdopen(handle, "r+b") as file:
        begin = file.seek(max(0, os.fstat(handle).st_size - _LAST_BYTES))
        text = file.read()
        *_, last = [None, *_COMMAND.finditer(text)]
        if last is None:
            return
        try:
            words = ast.literal_eval(last[0].decode())
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            return
        hidden = hide_known(str(redact_arguments(map(str, words)))).encode()
        if hidden == last[0]:
            return
        file.seek(begin + last.start())
        file.write(hidden + text[last.end() :])
        file.truncate()
