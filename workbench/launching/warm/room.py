"""Lets /proc show a fork's own environment and command line, as it would after an exec.

The kernel shows the memory where the exec laid them. The warm server is started with a long
variable and a long last argument to reserve room there, and each fork writes into it: so the run's
marker is found in /proc/PID/environ (`workbench.store.processes`), and ``ps`` names the script.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass

VARIABLE = "WORKBENCH_WARM_ROOM"
FILLING = "-" * (96 << 10)  # of the variable; the kernel allows 128 KiB for one
ARGUMENT = "-" * 2048


@dataclass(frozen=True)
class Room:
    """Where in memory the reserved strings lie."""

    environment: tuple[int, int]
    command: tuple[int, int]

    def show(self, environment: Mapping[str, str], title: str) -> None:
        """Show `environment` beside the server's own first variables, and `title` as command."""
        start, end = self.environment
        content, room = b"", end - start - 1
        for name, value in environment.items():
            line = f"{name}={value}".encode("utf-8", "surrogateescape") + b"\0"
            if len(content) + len(line) <= room:
                content += line
        _write(start, content.ljust(end - start, b"\0"))
        start, end = self.command
        text = title.encode("utf-8", "surrogateescape")[: end - start - 2]
        # A last byte that is not NUL tells the kernel that one text replaces the arguments.
        _write(start, text.ljust(end - start - 1, b"\0") + b".")


def find() -> Room | None:
    """The reserved room of this process; None when it was started without."""
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    arguments, arguments_end, start = (int(fields[at]) for at in (45, 46, 47))
    with open("/proc/self/environ", "rb") as file:
        environment = file.read()
    name = f"{VARIABLE}=".encode()
    at = 0 if environment.startswith(name) else environment.find(b"\0" + name) + 1
    if not start or not environment.startswith(name, at):
        return None
    end = environment.index(b"\0", at) + 1
    return Room((start + at, start + end), (arguments, arguments_end))


def _write(address: int, content: bytes) -> None:
    ctypes.memmove(address, content, len(content))
