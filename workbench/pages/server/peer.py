"""Whose process is at the other end of a connection over the loopback interface.

Files of a run are readable by their user alone, and a port of 127.0.0.1 is open to every user of
the machine: the kernel's table of sockets says who connects (Linux, ``proc_net_tcp(5)``).
"""

from __future__ import annotations

import ipaddress
import socket
import struct
from pathlib import Path

_TABLES = {4: Path("/proc/net/tcp"), 6: Path("/proc/net/tcp6")}


def is_loopback(host: str) -> bool:
    """Whether an address is one of this machine's loopback interface."""
    try:
        return _plain(host).is_loopback
    except ValueError:
        return False


def peer_uid(connection: socket.socket) -> int | None:
    """The user of the process that connected, over loopback; None = it cannot be told."""
    try:
        theirs, ours = connection.getpeername(), connection.getsockname()
        for version in (4, 6):
            pair = (_entry(theirs, version), _entry(ours, version))
            uid = None if None in pair else _uid(_TABLES[version], *map(str, pair))
            if uid is not None:
                return uid
    except (OSError, ValueError, struct.error):
        return None
    return None


def _plain(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """The address; one of IPv4 in IPv6's clothes as IPv4."""
    address = ipaddress.ip_address(host.partition("%")[0])
    return getattr(address, "ipv4_mapped", None) or address


def _entry(address: tuple[str, int], version: int) -> str | None:
    """An address and port as the table writes them; None: it cannot stand in that table."""
    ip = _plain(address[0])
    packed = ip.packed
    if version == 4 and ip.version == 6:
        return None
    if version == 6 and ip.version == 4:
        packed = b"\0" * 10 + b"\xff\xff" + packed
    words = struct.unpack(f"={len(packed) // 4}I", packed)
    return f"{''.join(f'{word:08X}' for word in words)}:{address[1]:04X}"


def _uid(table: Path, local: str, remote: str) -> int | None:
    with table.open(encoding="ascii") as lines:
        for line in lines:
            fields = line.split()
            if fields[1:3] == [local, remote]:
                orphan = fields[9] == "0"  # closed by its process: listed as root's
                return None if orphan else int(fields[7])
    return None
