"""Notices of pre-emption from a real HTTP server on loopback, also one that misbehaves."""

from __future__ import annotations

import contextlib
import http.server
import threading
import time

import pytest

from tests.conftest import until
from workbench.errors import UsageError
from workbench.recover.preemption import Poller, question

NOTICE = '{"action": "terminate", "time": "2026-11-21T08:22:00Z"}'


class Metadata(http.server.BaseHTTPRequestHandler):
    """Answers as the test says: `replies` maps a path to (status, body), or to a function."""

    protocol_version = "HTTP/1.0"

    def answer(self):
        self.server.asked.append((self.command, self.path, dict(self.headers)))
        reply = self.server.replies.get(self.path, (404, ""))
        if callable(reply):
            reply(self)
            return
        status, body = reply
        with contextlib.suppress(OSError):
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body if isinstance(body, bytes) else body.encode())

    do_GET = do_PUT = answer  # noqa: N815

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Metadata) as server:
        server.daemon_threads = True
        server.asked, server.replies = [], {}
        server.base = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield server
        server.shutdown()


@contextlib.contextmanager
def polling(where, **options):
    notices = []
    poller = Poller(where, notices.append, interval_seconds=0.05, **options)
    poller.start()
    try:
        yield poller, notices
    finally:
        poller.stop()


TOKEN, ACTION = "/latest/api/token", "/latest/meta-data/spot/instance-action"
PREEMPTED = "/computeMetadata/v1/instance/preempted"


def test_aws_asks_for_a_token_first_and_tells_once(server):
    server.replies[TOKEN] = (200, "secret-token")
    with polling("aws", base_url=server.base) as (poller, notices):
        until(lambda: len(server.asked) > 3, 10)
        assert notices == []
        assert poller.problem == ""
        server.replies[ACTION] = (200, NOTICE)
        until(lambda: notices, 10)
        time.sleep(0.2)
    assert notices == ["AWS will terminate this spot instance at 2026-11-21T08:22:00Z."]
    puts = [headers for method, _, headers in server.asked if method == "PUT"]
    assert len(puts) == 1
    assert int(next(v for k, v in puts[0].items() if k.lower().endswith("ttl-seconds"))) > 60
    for method, path, headers in server.asked:
        lower = {key.lower(): value for key, value in headers.items()}
        if method == "GET":
            assert path == ACTION
            assert lower["x-aws-ec2-metadata-token"] == "secret-token"


def test_aws_renews_a_token_that_expired(server):
    server.replies[TOKEN] = (200, "first")

    def action(handler):
        fresh = {k.lower(): v for k, v in handler.headers.items()}.get("x-aws-ec2-metadata-token")
        handler.send_response(200 if fresh == "second" else 401)
        handler.end_headers()
        handler.wfile.write(NOTICE.encode())

    server.replies[ACTION] = action
    with polling("aws", base_url=server.base) as (poller, notices):
        until(lambda: "401" in poller.problem, 10)
        server.replies[TOKEN] = (200, "second")
        until(lambda: notices, 10)


def test_gcp_is_asked_with_its_header(server):
    server.replies[PREEMPTED] = (200, "FALSE")
    with polling("gcp", base_url=server.base) as (_, notices):
        until(lambda: len(server.asked) > 2, 10)
        assert notices == []
        server.replies[PREEMPTED] = (200, "TRUE\n")
        until(lambda: notices, 10)
    assert "GCP" in notices[0]
    assert server.asked[0][2].get("Metadata-Flavor") == "Google"


def test_a_file_and_a_url_give_notice_by_being_there(server, tmp_path):
    with polling(str(tmp_path / "preempted")) as (_, notices):
        time.sleep(0.2)
        assert notices == []
        (tmp_path / "preempted").touch()
        until(lambda: notices, 10)
    for body in ("", "FALSE", "404", " none\n", "0"):
        server.replies["/n"] = (200, body)
        assert question(f"{server.base}/n")() is None
    assert question(f"{server.base}/absent")() is None
    server.replies["/n"] = (200, "shutdown at 8")
    assert "shutdown at 8" in question(f"{server.base}/n")()


def hanging(handler):
    time.sleep(30)


def slow(handler):
    time.sleep(1.0)
    handler.send_response(200)
    handler.end_headers()
    handler.wfile.write(b"TRUE")


def dripping(handler):
    with contextlib.suppress(OSError):
        handler.send_response(200)
        handler.end_headers()
        for _ in range(300):
            handler.wfile.write(b"T")
            time.sleep(0.1)


def elsewhere(handler):
    handler.send_response(302)
    handler.send_header("Location", "/moved")
    handler.end_headers()


BAD = {
    "error": (500, "TRUE"),
    "hanging": hanging,
    "dripping": dripping,
    "redirect": elsewhere,
    "no http": lambda handler: handler.wfile.write(b"\x00\xff garbage\r\n\r\n"),
    "nothing": lambda handler: None,
}


@pytest.mark.parametrize("reply", BAD)
def test_a_server_that_misbehaves_gives_no_notice_and_is_asked_again(server, reply):
    server.replies |= {PREEMPTED: BAD[reply], "/moved": (200, "TRUE")}
    with polling("gcp", base_url=server.base) as (poller, notices):
        until(lambda: poller.problem, 20)
        assert notices == []
        server.replies[PREEMPTED] = (200, "TRUE")
        until(lambda: notices, 20)


def test_slow_is_not_wrong_and_nobody_there_is_not_the_end(server):
    server.replies[PREEMPTED] = slow
    with polling("gcp", base_url=server.base) as (_, notices):
        until(lambda: notices, 20)
    with polling("gcp", base_url="http://127.0.0.1:9") as (poller, notices):
        until(lambda: "did not answer" in poller.problem, 20)
        assert notices == []


@pytest.mark.parametrize(
    "body", ["<html>login</html>", "[]", "{}", '{"action": "dance"}', b"\xff\xfe", "null", "3"]
)
def test_garbage_is_no_spot_notice(server, body):
    server.replies |= {TOKEN: (200, "t"), ACTION: (200, body)}
    with pytest.raises(ValueError):
        question("aws", server.base)()
    server.replies[TOKEN] = (200, "two\r\nlines")
    with pytest.raises(ValueError):
        question("aws", server.base)()


def test_a_callback_that_fails_harms_nobody(tmp_path):
    called = []

    def fail(notice):
        called.append(notice)
        raise RuntimeError

    poller = Poller(str(tmp_path), fail, interval_seconds=0.05)
    poller.start()
    until(lambda: called, 10)
    time.sleep(0.2)
    assert len(called) == 1
    poller.stop()


@pytest.mark.parametrize(
    "where", ["azure", "", "file:///etc/passwd", "ftp://a/b", "http://", "http://[", "a"]
)
def test_what_is_no_place_is_refused(where):
    with pytest.raises(UsageError, match="aws, gcp"):
        Poller(where, print)
