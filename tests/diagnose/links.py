"""Ranks of this machine with a network interface each, and one link slowed down; needs root.

Each rank has a network namespace on one bridge. A rank makes its rendezvous store first and enters
its namespace then: sockets stay where they were made, and what gloo opens later is in the namespace.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator

BURST = "16kb"


def can_slow() -> bool:
    """Whether namespaces, bridges and shaped links can be made here."""
    if os.geteuid() != 0 or not (shutil.which("ip") and shutil.which("tc")):
        return False
    with contextlib.suppress(subprocess.CalledProcessError, OSError), links("wbtry", 1, 0, 1e6):
        return True
    return False


@contextlib.contextmanager
def links(name: str, ranks: int, slow: int, bytes_per_second: float) -> Iterator[None]:
    """Namespaces `name`-0 and on, of which rank `slow` sends and receives that fast at most."""
    rate = f"{8 * bytes_per_second:.0f}bit"
    try:
        _run(f"ip link add {name}b type bridge")
        _run(f"ip link set {name}b up")
        for rank in range(ranks):
            space, outside, inside = f"{name}-{rank}", f"{name}o{rank}", f"{name}i{rank}"
            _run(f"ip netns add {space}")
            _run(f"ip link add {outside} type veth peer name {inside}")
            _run(f"ip link set {inside} netns {space}")
            _run(f"ip link set {outside} master {name}b up")
            _run(f"ip netns exec {space} ip addr add 10.231.77.{rank + 1}/24 dev {inside}")
            _run(f"ip netns exec {space} ip link set {inside} up")
            _run(f"ip netns exec {space} ip link set lo up")
            if rank == slow:
                shape = f"root tbf rate {rate} burst {BURST} latency 2s"
                _run(f"tc qdisc add dev {outside} {shape}")
                _run(f"ip netns exec {space} tc qdisc add dev {inside} {shape}")
        yield
    finally:
        for rank in range(ranks):
            _run(f"ip link del {name}o{rank}", check=False)
            _run(f"ip netns del {name}-{rank}", check=False)
        _run(f"ip link del {name}b", check=False)


def _run(words: str, *, check: bool = True) -> None:
    subprocess.run(words.split(), check=check, capture_output=True)
