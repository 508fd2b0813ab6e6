"""Two machines on one: network namespaces with an address each, joined by a virtual cable.

Node 0 is a network namespace alone. The other machine has its processes, its host name and its boot
id for itself too, so nothing that works there can rest on looking into /proc. What both share is
the file system, as shared storage would be.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Self

# As a machine of its own: its /proc is new, its boot id is a file of ours, its name is set.
_MACHINE = 'hostname "$1"; mount --bind "$2" /proc/sys/kernel/random/boot_id; shift 2; exec "$@"'


def why_not() -> str:
    """Why namespaces cannot be made here; empty = they can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None or shutil.which("unshare") is None:
        return "ip and unshare are missing: apt-get install iproute2 util-linux"
    name = f"wbtry{os.getpid()}"
    made = _run("ip", "netns", "add", name, check=False)
    if made.returncode:
        return f"ip netns add: {made.stderr.strip()}"
    _run("ip", "netns", "del", name)
    machine = _run("unshare", "--mount", "--pid", "--fork", "--uts", "true", check=False)
    return f"unshare: {machine.stderr.strip()}" if machine.returncode else ""


def _run(*words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, check=check, capture_output=True, text=True)


class TwoMachines:
    """Made on entering, gone on leaving, with all that was started in them."""

    def __init__(self, folder: Path) -> None:
        tag = f"wb{os.getpid() % 100_000}"
        self.names = (f"{tag}a", f"{tag}b")
        self.cards = (f"{tag}va", f"{tag}vb")
        self.addresses = ("10.213.77.1", "10.213.77.2")
        self._boot = folder / "boot-id-of-node-1"
        self._boot.write_text(f"{uuid.uuid4()}\n")
        self._started: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        _run("ip", "link", "add", self.cards[0], "type", "veth", "peer", "name", self.cards[1])
        for name, card, address in zip(self.names, self.cards, self.addresses, strict=True):
            _run("ip", "netns", "add", name)
            _run("ip", "link", "set", card, "netns", name)
            inside = ("ip", "-n", name)
            _run(*inside, "addr", "add", f"{address}/24", "dev", card)
            _run(*inside, "link", "set", "lo", "up")
            _run(*inside, "link", "set", card, "up")
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._started:
            process.kill()
            process.wait()
        for name in self.names:
            for pid in _run("ip", "netns", "pids", name, check=False).stdout.split():
                _run("kill", "-9", pid, check=False)
            _run("ip", "netns", "del", name, check=False)

    def cut(self) -> None:
        """Pull node 1's cable."""
        _run("ip", "-n", self.names[1], "link", "set", self.cards[1], "down")

    def mend(self) -> None:
        """Put it back."""
        _run("ip", "-n", self.names[1], "link", "set", self.cards[1], "up")

    def on_first(self, *words: str, **environment: str) -> str:
        """Run a command on node 0; its output."""
        done = subprocess.run(
            ["ip", "netns", "exec", self.names[0], *words],
            capture_output=True,
            text=True,
            env={**os.environ, **environment},
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def start(self, node: int, words: list[str], log: Path) -> subprocess.Popen[bytes]:
        """Start a command on a machine and continue; node 1 is one of its own in every respect."""
        apart = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--uts", "--mount-proc"]
        alone = [*apart, "sh", "-c", _MACHINE, "sh", "node-one", str(self._boot)] if node else []
        with log.open("ab") as output:
            process = subprocess.Popen(
                ["ip", "netns", "exec", self.names[node], *alone, *words],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self._started.append(process)
        return process


def workbench(*words: str) -> list[str]:
    """The command line of this checkout."""
    return [sys.executable, "-m", "workbench.cli", *words]
