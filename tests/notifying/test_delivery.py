"""Sent for real, to a web server of this machine: one message, and a whole run."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import workbench as wb
from tests.conftest import until
from workbench.notifying import Target, delivery, write_targets
from workbench.notifying.messages import Message
from workbench.queueing import Queue

pytest.importorskip("apprise")
TOKEN = "TIiajkdnlazkcOXrIdevi7FQ"


class Inbox:
    """A server that takes JSON by POST."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.status = 200
        inbox = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if inbox.status == 200:
                    inbox.messages.append(json.loads(body))
                    inbox.paths.append(self.path)
                self.send_response(inbox.status)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}/{TOKEN}"


@pytest.fixture
def inbox() -> Iterator[Inbox]:
    one = Inbox()
    yield one
    one.server.shutdown()
    one.server.server_close()


def test_a_message_arrives_or_says_why_not(inbox: Inbox) -> None:
    target = Target(name="hook", url=delivery.understood(inbox.url))
    message = Message(title="my run: nan-loss", body="<b>1 < 2</b> & more", severity="error")
    assert delivery.send(target, message) is None
    (got,) = inbox.messages
    assert (got["title"], got["message"], got["type"]) == (message.title, message.body, "failure")
    inbox.status = 500
    why = delivery.send(target, message)
    assert why
    assert TOKEN not in why


@pytest.mark.slow
def test_a_run_tells_its_finding_and_its_end_and_keeps_no_address(
    start: Callable[..., wb.Run],
    inbox: Inbox,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    target = Target(name="hook", url=delivery.understood(inbox.url), findings="error")
    write_targets({"hook": target})
    run = start("no_steps.py")
    run.wait(timeout=120)
    until(lambda: inbox.messages, 60, "a message")
    assert run.document["notify"] == ["all"]
    assert any("no-steps" in one["title"] for one in inbox.messages), inbox.messages
    log = run.directory / "logs" / "notify.log"
    until(lambda: log.exists() and "sent" in log.read_text(), 30, "the log says so")
    for path in run.directory.rglob("*"):
        if path.is_file():
            assert TOKEN not in path.read_text(errors="replace"), path


def test_a_run_that_is_dropped_from_the_queue_tells_its_end(
    store: Path, inbox: Inbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    write_targets({"hook": Target(name="hook", url=delivery.understood(inbox.url))})
    queue = Queue(store)
    queue.pause()
    run = wb.launch("gpt", ["--steps", "3"], store=store, queue=True, processes=1, cpu=True)
    queue.drop(run.id)
    until(lambda: inbox.messages, 60, "a message")
    assert inbox.messages[0]["title"] == f"{run.id}: stopped"
