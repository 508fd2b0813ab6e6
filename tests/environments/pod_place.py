"""A place like a rented pod's container, on this machine: its own root, processes and no network.

The root is this machine's under a layer that is forgotten afterwards. It has no package index, a
plain user, a Python whose JupyterLab is not ours, and a wheelhouse.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.environments.tiny_project import ROOT

USER, HOME = 4321, "/home/pod"
PYTHON = "/usr/bin/python3"
FOREIGN = "/opt/jupyter/bin/python"
CHECKOUT = (
    *("environments", "workbench", "widgets", "notebooks"),
    *("pyproject.toml", "README.md", "LICENSE"),
)

# Run as root in new namespaces. What it mounts is gone with them.
_SET_UP = """
set -eu
place=$1 house=$2 site=$3 source=$4
mount -t tmpfs none "$place" && cd "$place" && mkdir upper work root
mount -t overlay -o lowerdir=/,upperdir="$place/upper",workdir="$place/work" overlay root
cd root
mount -t proc proc proc
mount --rbind /dev dev
mount -t tmpfs none tmp && chmod 1777 tmp
mount -t tmpfs none opt
mount -t tmpfs none srv
mkdir -p srv/house srv/site srv/source home/pod workspace opt/jupyter
mount --bind "$house" srv/house
mount --bind "$site" srv/site
mount --bind "$source" srv/source
rm -rf etc/pip.conf etc/xdg/pip home/pod/.config
echo 'pod:x:4321:4321::/home/pod:/bin/bash' >> etc/passwd
mount -t tmpfs none home/pod
mkdir -p home/pod/training-workbench workspace
cp -R srv/source/. home/pod/training-workbench
chown -R 4321:4321 home/pod
mount -t tmpfs none workspace
cp -R srv/source workspace/training-workbench
chmod -R a+rX workspace
mount -o remount,ro workspace
ip link set lo up
chroot . /usr/bin/python3 -m venv --without-pip /opt/jupyter
echo /srv/site > "$(echo opt/jupyter/lib/python3*/site-packages)/foreign.pth"
echo ready
exec sleep infinity
"""


@functools.cache
def why_not() -> str:
    """Why there can be no such place here; "" = there can."""
    if os.geteuid() != 0:
        return "mounting needs root"
    missing = [name for name in ("unshare", "nsenter", "setpriv", "ip") if not shutil.which(name)]
    if missing:
        return f"{', '.join(missing)} are missing (Debian: apt-get install util-linux iproute2)"
    ask = "import ensurepip, sys; print(sys.version_info[:2])"
    done = subprocess.run([PYTHON, "-c", ask], capture_output=True, text=True, check=False)
    if done.stdout.strip() != str(sys.version_info[:2]):
        return f"{PYTHON} is not a Python {sys.version_info[0]}.{sys.version_info[1]} with venv"
    overlay = (
        'mount -t tmpfs none "$0" && cd "$0" && mkdir u w r && '
        'mount -t overlay -o lowerdir=/,upperdir="$0/u",workdir="$0/w" overlay r'
    )
    command = ["unshare", "--mount", "--pid", "--fork", "--net", "sh", "-c", overlay, "/mnt"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else f"no namespaces here: {done.stderr.strip()}"


class PodPlace:
    """Runs commands there. The user's paths are those of the place."""

    def __init__(self, pid: int, root: Path) -> None:
        self._pid, self.root = pid, root

    def argv(self, *words: str, user: int = USER, **variables: str) -> list[str]:
        """A command of that user in the place, with an environment of its own."""
        enter = ["nsenter", f"--target={self._pid}", "--mount", "--pid", "--net", "--uts", "--ipc"]
        to_user = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]
        to_user += ["--pdeathsig=KILL"]  # nsenter stays outside: what it started ends with it
        home = HOME if user else "/root"
        known = {
            "HOME": home,
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "LANG": "C.UTF-8",
            **variables,
        }
        pairs = [f"{name}={value}" for name, value in known.items()]
        return [*enter, "chroot", str(self.root), *to_user, "env", "-i", *pairs, *words]

    def run(
        self, *words: str, user: int = USER, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.argv(*words, user=user, **variables),
            capture_output=True,
            text=True,
            check=False,
            timeout=400,
        )

    @contextmanager
    def jupyter(self, port: int, token: str, *, user: int = USER) -> Iterator[None]:
        """A JupyterLab as a host starts it: its own Python, root directory ``/``."""
        options = [f"--port={port}", "--ServerApp.root_dir=/", "--ip=127.0.0.1", "--no-browser"]
        options += ["--allow-root"] if user == 0 else []
        argv = self.argv(FOREIGN, "-m", "jupyterlab", *options, user=user, JUPYTER_TOKEN=token)
        server = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert server.stdout is not None
        try:
            said = ""
            for line in server.stdout:
                said += line
                if "is running at" in line:
                    break
            else:
                raise AssertionError(said)
            yield
        finally:
            server.kill()
            server.communicate(timeout=60)


@contextmanager
def pod_place(folder: Path, house: Path) -> Iterator[PodPlace]:
    """Set up below `folder`; gone with all its processes afterwards."""
    source, mountpoint = folder / "checkout", folder / "place"
    source.mkdir()
    mountpoint.mkdir()
    for name in CHECKOUT:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, source / name)
    site = next(Path(sys.prefix).glob("lib/python3*/site-packages"))
    command = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--net", "--uts", "--ipc"]
    words = [str(mountpoint), str(house), str(site), str(source)]
    holder = subprocess.Popen(
        [*command, "bash", "-c", _SET_UP, "bash", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    try:
        if holder.stdout.readline().strip() != "ready":
            raise AssertionError(holder.communicate()[1])
        (child,) = Path(f"/proc/{holder.pid}/task/{holder.pid}/children").read_text().split()
        yield PodPlace(int(child), mountpoint / "root")
    finally:
        holder.kill()
        holder.communicate(timeout=60)
