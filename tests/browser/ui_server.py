"""``workbench ui`` as a real process, for the tests."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path


class UiServer:
    """The command on a free port, over a store."""

    def __init__(self, store: Path, *options: str) -> None:
        command = [sys.executable, "-m", "workbench.cli", "ui", "--port", "0", "--json"]
        self.process = subprocess.Popen(
            [*command, "--store", str(store), *options], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        text = ""
        while not text.endswith("}\n"):
            line = self.process.stdout.readline()
            assert line, text
            text += line
        told = json.loads(text)
        self.url, self.token = str(told["url"]), str(told["token"])
        self.port = int(self.url.rstrip("/").rpartition(":")[2])

    def close(self) -> int:
        """Ctrl-C; returns the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        try:
            return self.process.wait(30)
        finally:
            self.process.kill()
            assert self.process.stdout is not None
            self.process.stdout.close()
