"""S12: every server that we start asks for a token, and none listens wider than it must."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import until
from tests.security.test_real_run import is_loopback, listening
from workbench.store import processes

ROOT = Path(__file__).parents[2]
# The guides (*.md) quote what hosts start of their own.
OURS = [
    ROOT / "Makefile",
    *(
        path
        for path in sorted((ROOT / "environments").rglob("*"))
        if path.is_file() and path.suffix not in {".md", ".pyc"}
    ),
]
OPEN_DOORS = (
    r"(--|\bc\.|\b)\w*(ServerApp|NotebookApp|IdentityProvider)\.token\s*=\s*(''|\"\"|\s|$)",
    r"allow_origin(_pat)?\s*=\s*['\"]?[*.]",
    r"disable_check_xsrf\s*=\s*['\"]?True",
    r"allow_unauthenticated_access\s*=\s*['\"]?True",
    r"--ip=(\*|0\.0\.0\.0)",
)


@pytest.mark.parametrize("path", OURS, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_text_of_ours_opens_the_door(path: Path) -> None:
    found = [
        match[0]
        for line in path.read_text().splitlines()
        for way in OPEN_DOORS
        if (match := re.search(way, line))
    ]
    wide = ["--ip=0.0.0.0"] if path.name == "docker-start.sh" else []  # behind a token, under test
    assert found == wide


def answer(url: str, **headers: str) -> int:
    try:
        with urllib.request.urlopen(
            urllib.request.Request(url, headers=headers), timeout=20
        ) as got:
            return got.status
    except urllib.error.HTTPError as error:
        with error:
            return error.code


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path, int]]:
    """JupyterLab as ``make lab`` starts it."""
    pytest.importorskip("jupyterlab")
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    home = tmp_path_factory.mktemp("home")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    asked = f"LAB_ARGS=--no-browser --ServerApp.port={port} --ServerApp.port_retries=0"
    printed = subprocess.run(
        ["make", "-n", "lab", asked], cwd=ROOT, capture_output=True, text=True, check=True
    )
    line = next(one for one in printed.stdout.splitlines() if "jupyterlab" in one)
    environment = {
        name: text for name, text in os.environ.items() if not name.startswith(("JUPYTER", "MAKE"))
    }
    with (home / "log").open("wb") as log:
        server = subprocess.Popen(
            ["bash", "-c", line],
            cwd=ROOT,
            env={**environment, "HOME": str(home), "WORKBENCH_STORE": str(home / "runs")},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    url = f"http://127.0.0.1:{port}"
    try:
        until(lambda: server.poll() is not None or reachable(url), 90, "the server to answer")
        assert server.poll() is None, (home / "log").read_text()
        yield url, home, server.pid
    finally:
        with contextlib.suppress(ProcessLookupError):  # it did not start: the log above says why
            os.killpg(server.pid, signal.SIGTERM)
        server.wait(240)


def reachable(url: str) -> bool:
    try:
        return answer(f"{url}/api") > 0
    except OSError:
        return False


@pytest.mark.slow
def test_the_lab_of_make_lab_is_shut(lab: tuple[str, Path, int]) -> None:
    url, home, pid = lab
    assert answer(f"{url}/api/contents") == 403
    assert answer(f"{url}/api/contents", Authorization="token ") == 403
    assert answer(f"{url}/api/contents?token=") == 403
    assert not served(url)
    (info,) = home.rglob("jpserver-*.json")
    assert info.stat().st_mode & 0o077 == 0
    token = json.loads(info.read_text())["token"]
    assert len(token) >= 32
    assert answer(f"{url}/api/contents", Authorization=f"token {token}") == 200
    assert answer(f"{url}/api/contents?token={token}", Host="evil.example") == 403
    tree = [pid, *(process["pid"] for process in processes.descendants(pid))]
    for one in tree:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # gone in between
            assert token not in Path(f"/proc/{one}/cmdline").read_text()
    addresses = [address for one in tree for address in listening(one)]
    assert addresses
    assert all(map(is_loopback, addresses))


def served(url: str) -> bool:
    """Whether a file's text comes without a token (a redirect to the login page does not count)."""
    with urllib.request.urlopen(f"{url}/files/README.md", timeout=20) as got:
        return "/login" not in got.url
