"""A real JupyterLab server and a real Chromium on it, for the browser tests."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbformat
from selenium import webdriver
from selenium.common.exceptions import WebDriverException
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.remote.webelement import WebElement

from tests.conftest import allowed

REPOSITORY = Path(__file__).parents[2]
CHROMIUM_FLAGS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--force-device-scale-factor=1",
]
# No news prompt, no kernel dialog, no restart question: a dialog would cover what is tested.
OVERRIDES = {
    "@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False},
    "@jupyterlab/notebook-extension:tracker": {
        "windowingMode": "defer",
        "autoStartDefaultKernel": True,
    },
    "@jupyterlab/docmanager-extension:plugin": {"autosave": False},
}


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Lab:
    """A JupyterLab server on a free port of 127.0.0.1 with a token, below a folder of its own."""

    program = "jupyterlab"
    page = "lab/tree"

    @staticmethod
    def options(home: Path) -> list[str]:
        """Arguments of the program; the tests speak to the page through ``window.jupyterapp``."""
        return [
            "--expose-app-in-browser",
            f"--LabApp.app_settings_dir={home / 'settings'}",
            # Of the repository: an editable install holds a copy of it.
            f"--LabApp.extra_labextensions_path={REPOSITORY / 'widgets' / 'labextension'}",
        ]

    def __init__(self, root: Path, home: Path) -> None:
        self.root = root
        self.port = free_port()
        self.token = secrets.token_hex(16)
        self.url = f"http://127.0.0.1:{self.port}"
        for folder in (root, home, home / "runtime", home / "settings"):
            folder.mkdir(parents=True, exist_ok=True)
        (home / "settings" / "overrides.json").write_text(json.dumps(OVERRIDES))
        environment = {
            **os.environ,
            "HOME": str(home),
            "JUPYTER_RUNTIME_DIR": str(home / "runtime"),
            "JUPYTER_CONFIG_DIR": str(home / "config"),
            "JUPYTER_DATA_DIR": str(home / "data"),
            "IPYTHONDIR": str(home / "ipython"),
            "JUPYTER_TOKEN": self.token,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }
        environment.pop("WORKBENCH_STORE", None)
        self.log = (home / "lab.log").open("wb")
        self.process = subprocess.Popen(
            [sys.executable, "-m", self.program, "--no-browser", "--ip=127.0.0.1",
             f"--port={self.port}", "--port-retries=0", "--allow-root",
             f"--ServerApp.root_dir={root}", *self.options(home)],
            cwd=root, env=environment, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log,
            start_new_session=True,
        )  # fmt: skip
        self._wait_ready(home / "lab.log")

    def _wait_ready(self, log: Path) -> None:
        request = urllib.request.Request(f"{self.url}/api/status", headers=self.headers)
        for _ in range(480):
            with contextlib.suppress(OSError):
                urllib.request.urlopen(request, timeout=5).close()
                return
            if self.process.poll() is not None:
                break
            time.sleep(0.25)
        raise RuntimeError(f"{self.program} did not start:\n{log.read_text()[-3000:]}")

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"token {self.token}"}

    def api(self, method: str, path: str) -> Any:
        request = urllib.request.Request(
            f"{self.url}/api/{path}", headers=self.headers, method=method
        )
        with urllib.request.urlopen(request, timeout=20) as response:
            text = response.read()
        return json.loads(text) if text else None

    def notebook(self, name: str, *cells: str) -> str:
        """Write a notebook with these code cells; returns its address in the lab."""
        document = nbformat.v4.new_notebook(
            cells=[nbformat.v4.new_code_cell(cell) for cell in cells]
        )
        document.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
        nbformat.write(document, self.root / name)
        return self.address(name)

    def address(self, name: str) -> str:
        """Where a notebook below the root opens."""
        return f"{self.url}/{self.page}/{name}?token={self.token}&reset"

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGTERM)
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(10)
        self.log.close()


class Notebook7(Lab):
    """A server of Jupyter Notebook 7: one notebook a page, no panels around it."""

    program = "notebook"
    page = "notebooks"

    @staticmethod
    def options(home: Path) -> list[str]:
        """Arguments of the program."""
        return ["--JupyterNotebookApp.expose_app_in_browser=True"]


class Page:
    """What the tests do with the browser: waits are polls of the page, never fixed sleeps."""

    def __init__(self, profile: Path, width: int = 1600, height: int = 1300) -> None:
        self.width, self.height = width, height
        options = Options()
        options.binary_location = shutil.which("chromium") or "chromium"
        for flag in (
            *CHROMIUM_FLAGS,
            f"--user-data-dir={profile}",
            f"--window-size={width},{height}",
        ):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        service = Service(shutil.which("chromedriver"), log_output=subprocess.DEVNULL)
        self.driver = webdriver.Chrome(options=options, service=service)
        self.driver.set_script_timeout(60)
        # Without it JupyterLab has no current tab: a new headless window is not focused.
        self.driver.execute_cdp_cmd("Emulation.setFocusEmulationEnabled", {"enabled": True})

    def empty(self) -> None:
        """Leave what is shown and forget what it stored, said and measured."""
        origin = self.js("return window.location.origin")
        self.driver.get("about:blank")
        if origin.startswith("http"):
            self.driver.execute_cdp_cmd(
                "Storage.clearDataForOrigin",
                {"origin": origin, "storageTypes": "cookies,local_storage,indexeddb"},
            )
        self.driver.set_window_size(self.width, self.height)
        for kind in ("browser", "performance"):
            self.driver.get_log(kind)

    def js(self, script: str, *given: Any) -> Any:
        return self.driver.execute_script(script, *given)

    def until(self, what: str, check: Callable[[], Any], seconds: float = 60) -> Any:
        """First true answer of `check`; fails saying what was waited for."""
        began = time.monotonic()
        while time.monotonic() - began < allowed(seconds):
            with contextlib.suppress(Exception):
                found = check()
                if found:
                    return found
            time.sleep(0.1)
        raise AssertionError(f"not within {seconds} s: {what}")

    def one(self, selector: str, seconds: float = 60) -> WebElement:
        return self.until(
            selector,
            lambda: next(
                (
                    one
                    for one in self.driver.find_elements("css selector", selector)
                    if one.is_displayed()
                ),
                None,
            ),
            seconds,
        )

    def text(self, selector: str) -> str:
        return self.js("return document.querySelector(arguments[0])?.textContent ?? ''", selector)

    def open(self, url: str) -> None:
        self.driver.get(url)
        self.until("notebook open", lambda: self.js(
            "const w = window.jupyterapp?.shell.currentWidget; return w?.context?.isReady && !!w.content.widgets.length"
        ), 90)  # fmt: skip
        self.wait_for_kernel()

    def wait_for_kernel(self) -> None:
        """Until that of the notebook in front is idle.

        A test that ended earlier would end a kernel that the page still connects to: the server
        answers that a minute later, and the browser opens no other connection to it meanwhile.
        """
        self.until("kernel idle", lambda: self.js(
            "return window.jupyterapp.shell.currentWidget.sessionContext.session?.kernel?.status === 'idle'"
        ), 90)  # fmt: skip

    def command(self, name: str) -> None:
        """Run a JupyterLab command without waiting for what it starts."""
        self.js("window.jupyterapp.commands.execute(arguments[0])", name)

    def run_cell(self, index: int) -> None:
        self.js(
            "const book = window.jupyterapp.shell.currentWidget.content;"
            "book.deselectAll(); book.activeCellIndex = arguments[0];"
            "window.jupyterapp.commands.execute('notebook:run-cell')", index,
        )  # fmt: skip

    def save(self) -> None:
        self.driver.execute_async_script(
            "const done = arguments[0]; window.jupyterapp.commands.execute('docmanager:save').then(done, done)"
        )

    def focus_mode(self) -> None:
        """Only the notebook: no side bars, for screenshots of a given width."""
        self.js("const s = window.jupyterapp.shell; s.collapseLeft(); s.collapseRight();")

    def theme(self, name: str) -> None:
        self.driver.execute_async_script(
            "const done = arguments[1]; window.jupyterapp.commands"
            ".execute('apputils:change-theme', {theme: arguments[0]}).then(() => setTimeout(done, 900))",
            name,
        )

    def points(self) -> int:
        """Points of the loss curve that is on screen: of its longest trace."""
        return self.js(
            "const plot = document.querySelector('.wb-area-loss .js-plotly-plot');"
            "return plot && plot.querySelector('.scatterlayer path.js-line')"
            " ? Math.max(...plot.data.map((trace) => trace.x.length)) : 0"
        )

    def last_step(self) -> float:
        """How far the loss curve on screen reaches: a long one has fewer points than steps."""
        return self.js(
            "const plot = document.querySelector('.wb-area-loss .js-plotly-plot');"
            "return plot ? Math.max(...plot.data.map((trace) => trace.x.at(-1) ?? 0)) : 0"
        )

    def comm_bytes(self) -> int:
        """Bytes that came over the kernel's websocket since the last call."""
        total = 0
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.webSocketFrameReceived":
                frame = message["params"]["response"]
                text = frame["payloadData"]
                total += len(text) if frame["opcode"] == 1 else len(base64.b64decode(text))
        return total

    def errors(self) -> list[str]:
        """Errors of scripts. A file that is not there yet (404) is asked for again: no error."""
        found = [
            one["message"] for one in self.driver.get_log("browser") if one["level"] == "SEVERE"
        ]
        return [message for message in found if "Failed to load resource" not in message]

    def close(self) -> None:
        self.driver.quit()


class Chromium:
    """One Chromium for many tests; a new one if it was lost."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started = 0
        self.page: Page | None = None

    def empty_page(self) -> Page:
        if self.page is not None:
            try:
                self.page.empty()
            except WebDriverException:
                self.close()
            else:
                return self.page
        self.started += 1
        self.page = Page(self.folder / f"profile-{self.started}")
        return self.page

    def close(self) -> None:
        if self.page is not None:
            with contextlib.suppress(WebDriverException):
                self.page.close()
        self.page = None


@contextlib.contextmanager
def lab_and_page(folder: Path, **size: int) -> Iterator[tuple[Lab, Page]]:
    lab = Lab(folder / "root", folder / "home")
    try:
        page = Page(folder / "profile", **size)
        try:
            yield lab, page
        finally:
            page.close()
    finally:
        lab.close()
