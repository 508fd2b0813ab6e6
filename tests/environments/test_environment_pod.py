"""`pod-start.sh` in a place like a pod: no network, a plain user, somebody else's JupyterLab."""

import json

import pytest

from tests.environments import pod_place
from tests.environments.pod_place import HOME

pytestmark = [
    pytest.mark.slow,
    pytest.mark.full,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(bool(pod_place.why_not()), reason=pod_place.why_not()),
]
OWN, READ_ONLY = f"{HOME}/training-workbench", "/workspace/training-workbench"
TOKEN = "a-token-for-this-test-only"
# A kernel of that name, started by the server as the browser has it started, says who it is.
ASK_KERNEL = """
import json, sys, urllib.request
from jupyter_client import BlockingKernelClient
from jupyter_core.paths import jupyter_runtime_dir
port, token, code = sys.argv[1:]
body = json.dumps({"name": "training-workbench"}).encode()
request = urllib.request.Request(f"http://127.0.0.1:{port}/api/kernels", data=body)
request.add_header("Authorization", f"token {token}")
with urllib.request.urlopen(request, timeout=60) as answer:
    kernel = json.load(answer)["id"]
client = BlockingKernelClient()
client.load_connection_file(f"{jupyter_runtime_dir()}/kernel-{kernel}.json")
client.start_channels()
client.wait_for_ready(timeout=200)
client.execute_interactive(code, timeout=200)
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory, real_wheelhouse):
    with pod_place.pod_place(tmp_path_factory.mktemp("pod"), real_wheelhouse) as made:
        yield made


def pod_start(place, checkout=OWN, **more):
    script = f"{checkout}/environments/pod-start.sh"
    house = {"WORKBENCH_WHEELHOUSE": "/srv/house"}
    return place.run("bash", script, "--extras", "train,lab", **house, **more)


@pytest.fixture(scope="module")
def started(place):
    """What it said beside a JupyterLab of the same user, which goes on."""
    with place.jupyter(8888, TOKEN):
        done = pod_start(place)
        assert done.returncode == 0, done.stdout + done.stderr
        yield done.stdout


def test_the_place_is_what_it_is_said_to_be(place):
    assert place.run("id", "-u").stdout.strip() == str(pod_place.USER)
    assert "Read-only file system" in place.run("touch", f"{READ_ONLY}/file").stderr
    links = place.run("ip", "-brief", "link").stdout.split("\n")
    assert [line.split()[0] for line in links if line] == ["lo"]
    assert "index" not in place.run("/usr/bin/python3", "-m", "pip", "config", "list").stdout


def test_the_foreign_server_gets_the_kernel_and_starts_it(place, started):
    assert "torch: torch==" in started
    assert f"JupyterLab found: process {servers(place)[0]}, {pod_place.FOREIGN}" in started
    kernel = f"{HOME}/.local/share/jupyter/kernels/training-workbench/kernel.json"
    assert f"Kernel registered: {kernel}" in started
    assert "/lab/tree/home/pod/training-workbench/notebooks/00_start_here.ipynb" in started
    assert "-m pip install --no-deps --no-index --find-links /srv/house anywidget==" in started
    code = "import sys, workbench; print(sys.executable, workbench.__file__)"
    done = place.run(pod_place.FOREIGN, "-c", ASK_KERNEL, "8888", TOKEN, code)
    said = [f"{OWN}/.venv/bin/python", f"{OWN}/workbench/__init__.py"]
    assert done.stdout.split() == said, done.stderr


def servers(place):
    """Pids of the JupyterLabs there."""
    return place.run("pgrep", "-f", "jupyterlab --port").stdout.split()


def test_the_second_start_has_nothing_to_do(place, started):
    again = pod_start(place)
    assert again.returncode == 0, again.stderr
    assert f"{OWN}/.venv is ready (train, lab; torch" in again.stdout


def test_it_trains_there(place, started):
    words = ["launch", "gpt", "--nproc", "2", "--cpu", "--store", f"{HOME}/runs", "--json", "--"]
    words += ["--size", "2", "--seq-len", "32", "--micro-batch", "2", "--steps", "5"]
    launched = place.run(f"{OWN}/.venv/bin/workbench", *words)
    assert launched.returncode == 0, launched.stdout + launched.stderr
    run = json.loads(launched.stdout)["run"]
    code = "import sys, workbench as wb; print(wb.Run(wb.Store(sys.argv[1]).find(sys.argv[2])).wait(200))"
    ended = place.run(f"{OWN}/.venv/bin/python", "-c", code, f"{HOME}/runs", run)
    assert ended.stdout.strip() == "succeeded", ended.stderr


def test_a_checkout_that_cannot_be_written(place, started):
    refused = pod_start(place, READ_ONLY)
    assert refused.returncode == 1
    assert f"{READ_ONLY}/.venv cannot be written: Read-only file system" in refused.stderr
    assert "WORKBENCH_VENV=DIR" in refused.stderr
    done = pod_start(place, READ_ONLY, WORKBENCH_VENV=f"{HOME}/elsewhere")
    assert done.returncode == 0, done.stderr
    assert "/lab/tree/workspace/training-workbench/notebooks/00_start_here.ipynb" in done.stdout


def test_a_server_of_another_user_is_told(place, started):
    own = servers(place)
    place.run("kill", *own)
    with place.jupyter(8889, TOKEN, user=0):
        done = pod_start(place)
        (pid,) = servers(place)
    assert f"JupyterLab runs here as another user (process {pid} of root)" in done.stdout
    assert "--data-dir DIR" in done.stdout
