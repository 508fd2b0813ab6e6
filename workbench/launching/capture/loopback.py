"""Keeps the rendezvous of a run on one machine off the network. Standard library only.

torch's TCPStore listens on every interface and asks for no password: anyone who reaches the port
can end the training, or answer in a rank's name. It can be handed a socket that listens already,
and gets one of 127.0.0.1 here whenever the store's own address is a loopback one. With several
machines the address is another one, and nothing changes.
"""

from __future__ import annotations

import contextlib
import functools
import ipaddress
import os
import socket
from typing import Any


def keep_local(distributed: Any) -> None:
    """Replace ``torch.distributed.TCPStore``; for the module as soon as it has been loaded."""
    store: Any = distributed.TCPStore
    base = store.__init__

    class TCPStore(store):
        """torch's own, except for where it listens."""

        def __init__(
            self,
            host_name: str,
            port: int,
            world_size: int | None = None,
            is_master: bool = False,  # noqa: FBT001, FBT002  (torch's signature)
            *rest: Any,
            **more: Any,
        ) -> None:
            handle = None
            if is_master and "master_listen_fd" not in more and is_loopback(host_name):
                # A port that is taken: torch says so itself, or shares the store it has there.
                with contextlib.suppress(OSError):
                    handle, port = listen(host_name, port)
            if handle is None:
                base(self, host_name, port, world_size, is_master, *rest, **more)
                return
            construct = functools.partial(base, self, host_name, port, world_size, is_master, *rest)
            try:
                construct(master_listen_fd=handle, **more)
            except NotImplementedError:  # torch 2.7: only the store without libuv can take it
                construct(master_listen_fd=handle, **{**more, "use_libuv": False})
            except TypeError:  # a torch that cannot take it
                os.close(handle)
                construct(**more)

    TCPStore.__module__ = store.__module__
    distributed.TCPStore = TCPStore


def is_loopback(host: str) -> bool:
    """Whether `host` names this machine to itself alone."""
    if host == "localhost":
        return True
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return False


def listen(host: str, port: int) -> tuple[int, int]:
    """Descriptor and port of a socket that listens at `host`; port 0 takes a free one."""
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    with socket.socket(family, kind, protocol) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(1024)
        port = listener.getsockname()[1]
        return listener.detach(), port
