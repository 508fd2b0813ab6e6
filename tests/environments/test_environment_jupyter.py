"""The image's start script, run for real: is its door shut, and can a kernel be registered with it?"""

import contextlib
import http.client
import http.cookiejar
import importlib.metadata
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import register_kernel

from tests.environments.tiny_project import ENVIRONMENTS

pytest.importorskip("jupyterlab", reason="the extra lab is not installed")
TOKEN = "a-token-for-this-test-only"
START = ENVIRONMENTS / "docker-start.sh"


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def status(url, **headers):
    request = urllib.request.Request(url, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        with error:
            return error.code


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    (home / "work").mkdir()
    port = free_port()
    environment = {
        **{k: v for k, v in os.environ.items() if not k.startswith(("JUPYTER", "XDG"))},
        "HOME": str(home),
        "JUPYTER_TOKEN": TOKEN,
        "WORKBENCH_PYTHON": sys.executable,
        "WORKBENCH_PORT": str(port),
        "WORKBENCH_WORKSPACE": str(home / "work"),
    }
    root = ["--allow-root"] if os.geteuid() == 0 else []
    log = (home / "log").open("w")
    process = subprocess.Popen([START, *root], env=environment, stdout=log, stderr=log)
    url = f"http://127.0.0.1:{port}"
    deadline = time.monotonic() + 150
    while time.monotonic() < deadline:
        try:
            status(url + "/api")
            break
        except OSError:
            assert process.poll() is None, (home / "log").read_text()
            time.sleep(0.1)
    yield process.pid, url, home
    process.terminate()
    process.wait(timeout=240)
    log.close()


def test_the_door(server):
    pid, url, _ = server
    assert status(url + "/api/contents") == 403
    assert status(url + "/api/contents", Authorization="token ") == 403
    assert status(url + "/api/contents", Authorization="token wrong") == 403
    assert status(url + "/api/contents", Authorization=f"token {TOKEN}") == 200
    assert TOKEN not in Path(f"/proc/{pid}/cmdline").read_text()


def test_a_page_of_another_site_cannot_use_the_users_login(server):
    """The browser sends the cookie of the login with every request, whoever caused it."""
    _, url, _ = server
    jar = http.cookiejar.CookieJar()
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(jar))
    with browser.open(f"{url}/lab?token={TOKEN}", timeout=240) as answer:
        assert answer.status == 200
    upgrade = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
        "Cookie": "; ".join(f"{cookie.name}={cookie.value}" for cookie in jar),
    }
    for origin, expected in ((url, 101), ("http://evil.example", 403)):
        connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=30)
        connection.request("GET", "/api/events/subscribe", headers={**upgrade, "Origin": origin})
        with contextlib.closing(connection), connection.getresponse() as answer:
            assert answer.status == expected, origin


def test_the_workspace_is_filled_once_and_private(server):
    _, _, home = server
    if not (ENVIRONMENTS.parent / "notebooks").is_dir():
        pytest.skip("this checkout has no notebooks yet")
    notebooks = home / "work/notebooks"
    assert notebooks.is_dir()
    assert notebooks.stat().st_mode & 0o077 == 0


def test_the_running_server_is_found_and_gets_the_kernel(server):
    pid, _, home = server
    (found,) = [one for one in register_kernel.running_servers() if one.pid == pid]
    assert found.python == sys.executable
    assert TOKEN not in repr(found)
    view = register_kernel.view_of(found)
    assert view.root_dir == str(home / "work")
    assert view.lacks() == []
    assert view.path_of(home / "work/notebooks/a b.ipynb") == "/lab/tree/notebooks/a%20b.ipynb"
    assert view.path_of(Path("/elsewhere.ipynb")) is None
    written = register_kernel.register(view.data_dirs)
    assert written.is_relative_to(home)
    argv = [sys.executable, "-m", "jupyter", "kernelspec", "list", "--json"]
    listed = subprocess.run(
        argv, capture_output=True, text=True, check=True, env={**os.environ, "HOME": str(home)}
    )
    spec = json.loads(listed.stdout)["kernelspecs"][register_kernel.KERNEL_NAME]["spec"]
    assert spec["argv"][0] == sys.executable


@pytest.mark.parametrize(
    "option",
    [
        "--IdentityProvider.token ",
        "--ServerApp.password ",
        "--ServerApp.token=",
        "--IdentityProvider.token=''",
        "--PasswordIdentityProvider.hashed_password=",
        "--ServerApp.allow_origin=*",
        "--ServerApp.disable_check_xsrf=True",
    ],
)
def test_the_door_cannot_be_opened_by_an_option(option):
    done = subprocess.run([START, *option.split(" ")], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "is refused" in done.stderr
    assert "Next: set a token" in done.stderr


@pytest.mark.parametrize(
    ("argv", "is_one"),
    [
        (["/usr/bin/python3", "/usr/local/bin/jupyter-lab", "--ip=*"], True),
        (["/opt/venv/bin/python3.12", "-u", "-m", "jupyterlab"], True),
        (["python", "-m", "jupyter_server"], True),
        (["/usr/bin/python3", "-m", "ipykernel_launcher", "-f", "jupyter-lab"], False),
        (["/usr/bin/python3", "train.py", "jupyter-lab"], False),
        (["vim", "/usr/local/bin/jupyter-lab"], False),
        (["python3"], False),
        ([""], False),
    ],
)
def test_which_processes_are_servers(argv, is_one):
    assert register_kernel.is_server(argv) is is_one


def test_what_a_bare_server_lacks(tmp_path):
    (tmp_path / "labextensions/@jupyter-widgets/jupyterlab-manager").mkdir(parents=True)
    view = register_kernel.View((str(tmp_path),))
    assert view.lacks() == ["anywidget", "plotly"]
    command = register_kernel.install_command(
        register_kernel.Server(1, "/srv/python"), view.lacks()
    )
    assert command[:4] == ["/srv/python", "-m", "pip", "install"]
    assert [word.partition("==")[0] for word in command[-2:]] == ["anywidget", "plotly"]


def test_what_a_server_lacks_comes_from_the_wheelhouse_where_there_is_one(monkeypatch):
    monkeypatch.setenv("WORKBENCH_WHEELHOUSE", "/srv/house")
    command = register_kernel.install_command(register_kernel.Server(1, "/srv/python"), ["plotly"])
    assert command[5:8] == ["--no-index", "--find-links", "/srv/house"]


def test_a_server_that_we_may_not_look_into_is_told():
    assert register_kernel._no_server([]).startswith("No other Python's JupyterLab")
    said = register_kernel._no_server(["process 12 of root"])
    assert "as another user (process 12 of root)" in said
    assert "--data-dir DIR" in said


def test_every_front_end_half_is_in_the_environment_of_the_lab():
    """What a foreign server is told to install must bring the directory that was missing."""
    for package, extension in register_kernel.FRONT_ENDS.items():
        files = importlib.metadata.files(package) or ()
        assert any(f"labextensions/{extension}/" in str(file) for file in files), package


def test_a_directory_that_cannot_be_written_is_passed_over(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    written = register_kernel.register((str(blocked), str(tmp_path / "data")))
    assert written == tmp_path / "data/kernels/training-workbench/kernel.json"
    with pytest.raises(SystemExit, match=r"(?s)no directory could be written.*--data-dir"):
        register_kernel.register((str(blocked),))
