"""The image without Docker: each instruction of the Dockerfile in a Debian root, and its command."""

import shutil
import subprocess
import time

import pytest

from tests.environments import built_image
from tests.environments.built_image import DOCKERFILE, Image
from tests.environments.test_environment_files import instructions, of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.full,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(bool(built_image.why_not()), reason=built_image.why_not()),
]
TOKEN = "a-token-for-this-test-only"


@pytest.fixture(scope="module")
def image(tmp_path_factory, real_wheelhouse):
    root = tmp_path_factory.mktemp("image") / "root"
    made = Image(root, real_wheelhouse, EXTRAS="train,lab")
    try:
        made.bootstrap()
    except built_image.Failed as error:
        pytest.skip(f"debootstrap cannot fetch Debian here: {error}")
    made.build(instructions(DOCKERFILE.read_text()))
    yield made
    shutil.rmtree(root)


def test_the_user_owns_its_environment_and_is_not_root(image):
    assert image.user == "workbench"
    assert image.run("id -u").strip() == "1000"
    versions = "import torch, workbench; print(torch.__version__, workbench.__file__)"
    assert "/opt/workbench/workbench/__init__.py" in image.run(f"python -c '{versions}'")
    assert image.run("stat -c '%U %a' /workspace").split() == ["workbench", "700"]


def test_the_command_listens_behind_its_token_and_is_healthy(image):
    (entry,) = of(instructions(DOCKERFILE.read_text()), "ENTRYPOINT")
    assert entry == '["/usr/bin/tini", "-g", "--"]'
    (health,) = of(instructions(DOCKERFILE.read_text()), "HEALTHCHECK")
    check = health.partition(" CMD ")[2].removesuffix(" || exit 1")
    ask = "curl --silent --output /dev/null --write-out '%{http_code} '"
    url = "http://127.0.0.1:8888/api/contents"
    script = (
        "/usr/bin/tini -g -- /opt/workbench/environments/docker-start.sh >/tmp/log 2>&1 & "
        f"until {check}; do sleep 0.5; kill -0 $! || exit 3; done; "
        f"{ask} {url}; {ask} -H 'Authorization: token {TOKEN}' {url}; "
        "ls /workspace/notebooks | grep -c ipynb; kill $!; wait $!; cat /tmp/log"
    )
    image.variables["JUPYTER_TOKEN"] = TOKEN
    argv = image.argv("/bin/bash", "-c", script, network=False)
    began = time.monotonic()
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    print(f"the server answered and ended within {time.monotonic() - began:.0f} s")
    words = done.stdout.split()
    assert words[:2] == ["403", "200"], done.stdout + done.stderr
    assert int(words[2]) > 0
    assert TOKEN not in done.stdout
