"""The Dockerfile's instructions carried out in a Debian root of debootstrap: Docker is not needed.

What differs from a build: the base is Debian without torch, and no layer is kept.
"""

from __future__ import annotations

import functools
import shlex
import shutil
import subprocess
from pathlib import Path

from tests.environments.tiny_project import ENVIRONMENTS, ROOT

DOCKERFILE = ENVIRONMENTS / "Dockerfile"
WHEELHOUSE = "/wheelhouse"
_ENTER = """
set -eu
root=$1 house=$2
mkdir -p "$root$3"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount --bind "$house" "$root$3"
shift 3
ip link set lo up 2>/dev/null || true
exec chroot "$root" "$@"
"""


@functools.cache
def why_not() -> str:
    """Why nothing can be built here; "" = it can. The mirror of packages is asked by the build."""
    missing = [name for name in ("debootstrap", "unshare", "ip") if not shutil.which(name)]
    if missing:
        return f"{', '.join(missing)} missing (Debian: apt-get install debootstrap iproute2)"
    done = subprocess.run(
        ["unshare", "--mount", "--pid", "--fork", "true"],
        capture_output=True,
        text=True,
        check=False,
    )
    return "" if done.returncode == 0 else f"no namespaces here: {done.stderr.strip()}"


class Failed(Exception):  # noqa: N818
    """An instruction failed; the message has its output."""


class Image:
    """A root in which the instructions are carried out one after the other."""

    def __init__(self, root: Path, house: Path, **arguments: str) -> None:
        self.root, self._house, self._arguments = root, house, arguments
        self.variables = {
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "WORKBENCH_WHEELHOUSE": WHEELHOUSE,
        }
        self.user, self.folder = "root", "/"

    def bootstrap(self) -> None:
        """The base: a small Debian."""
        command = ["debootstrap", "--variant=minbase", "bookworm", str(self.root)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise Failed(done.stdout[-1500:] + done.stderr[-500:])
        shutil.copy("/etc/resolv.conf", self.root / "etc/resolv.conf")

    def argv(self, *words: str, network: bool = True) -> list[str]:
        """A command there, of the present user with the present variables."""
        enter = ["unshare", "--mount", "--pid", "--fork", "--kill-child"]
        enter += [] if network else ["--net"]
        to_user = ["setpriv", f"--reuid={self.user}", f"--regid={self.user}", "--init-groups"]
        home = "/root" if self.user == "root" else f"/home/{self.user}"
        pairs = [f"{name}={value}" for name, value in {**self.variables, "HOME": home}.items()]
        outer = ["bash", "-c", _ENTER, "bash", str(self.root), str(self._house), WHEELHOUSE]
        line = f"cd {shlex.quote(self.folder)} && exec {shlex.join(words)}"
        return [*enter, *outer, *to_user, "env", "-i", *pairs, "/bin/bash", "-c", line]

    def run(self, line: str) -> str:
        """What the shell of the Dockerfile makes of a line."""
        argv = self.argv("/bin/bash", "-o", "pipefail", "-c", line)
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        if done.returncode:
            raise Failed(f"{line}\n{done.stdout[-2500:]}{done.stderr[-1500:]}")
        return done.stdout

    def build(self, instructions: list[tuple[str, str]]) -> None:
        """Carry out all that makes the image."""
        for keyword, rest in instructions:
            if keyword == "RUN":
                self.run(rest)
            elif keyword == "ARG":
                name, _, default = rest.partition("=")
                self.variables[name] = self._arguments.get(name, default)
            elif keyword == "ENV":
                for pair in shlex.split(rest):
                    name, _, value = pair.partition("=")
                    self.variables[name] = value.replace("${PATH}", self.variables["PATH"])
            elif keyword == "USER":
                self.user = rest
            elif keyword == "WORKDIR":
                self.folder = rest
            elif keyword == "COPY":
                self._copy(rest)

    def _copy(self, rest: str) -> None:
        owner, *sources, target = rest.split()
        place = self.root / self.folder.lstrip("/") / target
        for source in sources:
            skip = shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints", ".env")
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, place, ignore=skip, dirs_exist_ok=True)
            else:
                shutil.copy(ROOT / source, place)
        inside = f"{self.folder}/{target}"
        command = ["chroot", str(self.root), "chown", "-R", owner.removeprefix("--chown="), inside]
        subprocess.run(command, check=True)
