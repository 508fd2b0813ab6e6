"""A real marimo server on a notebook, for the browser tests."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from tests.browser.lab import free_port

THEME = '[tool.marimo.display]\ntheme = "{theme}"\n'


class Marimo:
    """``marimo run`` on a free port of 127.0.0.1, in a folder of its own."""

    def __init__(self, notebook: Path, folder: Path, theme: str, **environment: str) -> None:
        folder.mkdir(parents=True)
        (folder / "pyproject.toml").write_text(THEME.format(theme=theme))
        copy = folder / notebook.name
        copy.write_text(notebook.read_text())
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.log = (folder / "marimo.log").open("wb")
        home = {"HOME": str(folder), "XDG_CONFIG_HOME": str(folder), "XDG_STATE_HOME": str(folder)}
        command = [sys.executable, "-m", "marimo", "-y", "run", str(copy), "--headless"]
        self.process = subprocess.Popen(
            [*command, "--no-token", "--host=127.0.0.1", f"--port={port}"],
            cwd=folder, env={**os.environ, **home, **environment},
            stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log,
        )  # fmt: skip
        self._wait_ready(folder / "marimo.log")

    def _wait_ready(self, log: Path) -> None:
        for _ in range(480):
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"{self.url}/health", timeout=5).close()
                return
            if self.process.poll() is not None:
                break
            time.sleep(0.25)
        raise RuntimeError(f"marimo did not start:\n{log.read_text()[-3000:]}")

    def close(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(10)
        self.log.close()
