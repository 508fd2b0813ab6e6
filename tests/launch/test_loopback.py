"""The rendezvous of a run on one machine listens on loopback alone, whatever the release of torch."""

from __future__ import annotations

import os
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

distributed = pytest.importorskip("torch.distributed")

from workbench.launching.capture.loopback import keep_local  # noqa: E402

WAIT = timedelta(seconds=20)


class OfTorch27(distributed.TCPStore):
    """Up to torch 2.7 the store with libuv refuses a socket that listens already."""

    def __init__(self, *given: Any, use_libuv: bool = True, **more: Any) -> None:
        if use_libuv and "master_listen_fd" in more:
            raise NotImplementedError("The libuv TCPStore backend does not support …")
        super().__init__(*given, use_libuv=use_libuv, **more)


class WithoutSocket(distributed.TCPStore):
    """A store that cannot be handed a socket at all."""

    def __init__(self, *given: Any, **more: Any) -> None:
        if "master_listen_fd" in more:
            raise TypeError("unexpected keyword argument 'master_listen_fd'")
        super().__init__(*given, **more)


@pytest.mark.parametrize(
    ("store", "local"),
    [(distributed.TCPStore, True), (OfTorch27, True), (WithoutSocket, False)],
)
def test_ranks_reach_it_and_other_machines_do_not(store: Any, *, local: bool) -> None:
    module = SimpleNamespace(TCPStore=store)
    keep_local(module)
    lead = module.TCPStore("127.0.0.1", 0, 2, is_master=True, timeout=WAIT, wait_for_workers=False)
    peer = distributed.TCPStore("127.0.0.1", lead.port, 2, is_master=False, timeout=WAIT)
    peer.set("step", "3")
    assert lead.get("step") == b"3"
    listens = {
        one.laddr.ip
        for one in psutil.Process(os.getpid()).net_connections("tcp")
        if one.status == psutil.CONN_LISTEN and one.laddr.port == lead.port
    }
    assert (listens == {"127.0.0.1"}) is local
