"""What the user sees while something long runs, and the log that keeps all of it."""

from __future__ import annotations

import collections
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from venv_setup.errors import SetupError
from venv_setup.hints import next_step
from venv_setup.repair import MARK
from venv_setup.state import LOG_NAME

_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_QUIET_SECONDS = 30
"""Without a terminal, one line of life per this long; CI ends jobs that stay silent."""

_KEPT_LINES = 200
"""What a hint is looked for in: pip reports an unreachable index long before its last line."""
_SHOWN_LINES = 15

# Settings of the user's pip that send packages elsewhere than into the environment.
_MISLEADING = (
    "PIP_USER",
    "PIP_TARGET",
    "PIP_PREFIX",
    "PIP_ROOT",
    "PYTHONHOME",
    "__PYVENV_LAUNCHER__",
)


def say(text: str) -> None:
    """One line, at once."""
    print(text, flush=True)


def without_credentials(text: str) -> str:
    """The text with user:password@ taken out of every address."""
    return re.sub(r"//[^/@\s]+@", "//***@", text)


class Runner:
    """Runs the commands of the stages, with progress on the screen and everything in the log."""

    def __init__(self, venv: Path) -> None:
        self.venv = venv
        self.log = venv / LOG_NAME
        self.tty = sys.stdout.isatty()

    def run(
        self, argv: Sequence[str], what: str, *, environment: Mapping[str, str] | None = None
    ) -> None:
        """Runs to the end.

        Raises:
            SetupError: it failed; the message has its last lines and where the log is.
        """
        began = time.monotonic()
        tail: collections.deque[str] = collections.deque(maxlen=_KEPT_LINES)
        with self.log.open("a", encoding="utf-8") as log:
            stamp = time.strftime("%Y-%m-%d %H:%M:%S")
            log.write(without_credentials(f"\n### {stamp} {what}: {' '.join(argv)}\n"))
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                env=self._environment(environment or {}),
            )
            reader = threading.Thread(target=_drain, args=(process, tail, log), daemon=True)
            reader.start()
            try:
                self._watch(process, what, began, tail)
            finally:
                _end(process)
                reader.join(timeout=5)
        seconds = time.monotonic() - began
        if process.returncode:
            raise self._failed(what, process.returncode, list(tail))
        self._clear()
        say(f"  {what}: done in {seconds:.0f} s")

    def _environment(self, extra: Mapping[str, str]) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if name not in _MISLEADING}
        quiet = {"PIP_NO_INPUT": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PYTHONUNBUFFERED": "1"}
        return {**kept, **quiet, **extra, MARK: str(self.venv)}

    def _watch(
        self, process: subprocess.Popen[str], what: str, began: float, tail: Sequence[str]
    ) -> None:
        shown = 0
        if not self.tty:
            say(f"  {what} …")
        while not _ended(process, within=0.15):
            seconds = time.monotonic() - began
            last = tail[-1] if tail else ""
            if self.tty:
                sign = _SPINNER[int(seconds * 7) % len(_SPINNER)]
                width = shutil.get_terminal_size().columns - 1
                line = f"{sign} {what}  {seconds:3.0f} s  {last}"[:width]
                print(f"\r\033[K{line}", end="", flush=True)
            elif seconds // _QUIET_SECONDS > shown:
                shown += 1
                say(f"  {what}: {seconds:.0f} s so far, now: {last[:80]}")

    def _clear(self) -> None:
        if self.tty:
            print("\r\033[K", end="", flush=True)

    def _failed(self, what: str, code: int, tail: list[str]) -> SetupError:
        self._clear()
        text = "\n".join(f"    {line}" for line in tail[-_SHOWN_LINES:])
        return SetupError(
            f"{what} failed (exit code {code}). Its last lines:\n{text}",
            f"{next_step(tail)} Then run the same command again: it goes on from here.\n"
            f"The whole log: {self.log}",
        )


def _ended(process: subprocess.Popen[str], *, within: float) -> bool:
    try:
        process.wait(timeout=within)
    except subprocess.TimeoutExpired:
        return False
    return True


def _drain(process: subprocess.Popen[str], tail: collections.deque[str], log: object) -> None:
    if process.stdout is None:
        return
    for line in process.stdout:
        clean = without_credentials(line.rstrip())
        if clean:
            tail.append(clean)
            print(clean, file=log, flush=True)  # type: ignore[call-overload]


def _end(process: subprocess.Popen[str]) -> None:
    """After an interruption: the child gets a few seconds, then it is killed."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
