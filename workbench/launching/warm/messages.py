"""Messages over a Unix socket: a JSON document and, with it, open files. Standard library only."""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Sequence
from typing import Any

_LENGTH = struct.Struct(">I")
_MAX_BYTES = 16 << 20
_PEER = struct.Struct("3i")
GO = b"g"
"""Who asked for a start says so when it is ready: from then on it waits for the process."""


def send(connection: socket.socket, document: dict[str, Any], files: Sequence[int] = ()) -> None:
    """Send `document`, and the descriptors `files` with it. Raises OSError: no one listens."""
    body = json.dumps(document).encode()
    socket.send_fds(connection, [_LENGTH.pack(len(body))], files)
    connection.sendall(body)


def receive(connection: socket.socket, files: int = 0) -> tuple[dict[str, Any], list[int]]:
    """The next document and up to `files` descriptors.

    Raises:
        EOFError: the other side has gone.
        OSError: the connection broke, or nothing came in time.
    """
    head, descriptors, _, _ = socket.recv_fds(connection, _LENGTH.size, files)
    head += _exactly(connection, _LENGTH.size - len(head)) if head else b""
    if not head:
        raise EOFError
    (size,) = _LENGTH.unpack(head)
    if size > _MAX_BYTES:
        raise OSError(f"a message of {size} bytes")
    return json.loads(_exactly(connection, size)), list(descriptors)


def _exactly(connection: socket.socket, size: int) -> bytes:
    parts = list[bytes]()
    while size:
        part = connection.recv(size)
        if not part:
            raise EOFError
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def is_ours(connection: socket.socket) -> bool:
    """Whether the process at the other end is this user's: the kernel says so."""
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    return _PEER.unpack(data)[1] == os.getuid()
