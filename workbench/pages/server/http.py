"""The server: connections, headers, ranges and sizes. What is answered stands in `routes`."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import re
import socket
import sys
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast
from urllib.parse import parse_qsl, unquote, urlsplit

from workbench.errors import WorkbenchError, sentence
from workbench.pages.server.access import Access, Request, own_user
from workbench.pages.server.routes import Answer, Routes, problem

_BODY_MAX = 64_000
_IDLE_SECONDS = 75.0
_CHUNK = 1 << 18
_PACKED_FROM = 1_000  # bytes: smaller ones gain nothing


class PageServer(ThreadingHTTPServer):
    """The page of one store, until `shutdown`."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, store: Path, host: str, port: int, *, token: str, names: list[str]) -> None:
        """Bind; port 0 takes a free one. Raises OSError where the address cannot be used."""
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), _Handler)
        bound = str(self.server_address[0])
        loopback = bound.startswith("127.") or bound == "::1"
        more = [] if loopback else [socket.gethostname(), socket.getfqdn()]
        self.routes = Routes(store)
        self.access = Access(
            token=token,
            port=self.server_port,
            open_to_own=loopback,
            names=frozenset(name.lower() for name in (host, *names, *more)),
        )

    def server_bind(self) -> None:
        """Bind without asking the name service for our name, which can take seconds."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A page that went away in the middle of an answer is usual; anything else is reported."""
        if not isinstance(sys.exc_info()[1], ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = _IDLE_SECONDS
    server_version, sys_version = "workbench", ""
    disable_nagle_algorithm = True  # else each answer waits 40 ms for the client's confirmation

    def setup(self) -> None:
        super().setup()
        self.own_user = own_user(self.connection)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
        """Requests are not logged: a page asks each second, and addresses may hold the token."""

    def do_GET(self) -> None:
        self._handle(self._page.routes.get)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_POST(self) -> None:
        message, refused = self._body()
        if refused is not None:
            self.close_connection = True  # what is left of the body is not read
            return self._send(refused)
        post = self._page.routes.post

        def answer(path: str, _query: dict[str, str], *, acts: bool) -> Answer:
            return post(path, message, acts=acts)

        return self._handle(answer)

    @property
    def _page(self) -> PageServer:
        return cast("PageServer", self.server)

    def _handle(self, route: Callable[..., Answer]) -> None:
        try:
            address = urlsplit(self.path)
        except ValueError:  # "http://[": half an address
            return self._send(problem(400, "This is not an address."))
        query = dict(parse_qsl(address.query, keep_blank_values=True))
        headers = {name.lower(): text for name, text in self.headers.items()}
        access = self._page.access
        request = Request(
            headers=headers,
            query_token=query.get("token"),
            own_user=self.own_user,
        )
        if not access.host_allowed(headers.get("host", "")):
            return self._send(problem(403, "The host of this address is not this server's name."))
        if refused := access.refused(request):
            return self._send(problem(403, refused))
        acts = access.has_token(request)
        if address.path == "/" and query.get("token") and acts:
            return self._send(self._with_cookie(access))
        try:
            answer = route(unquote(address.path), query, acts=acts)
        except (OSError, WorkbenchError) as error:  # a store that went away, a full disk
            answer = problem(500, sentence(error))
        except RecursionError:
            answer = problem(400, "What was sent is nested too deeply.")
        return self._send(answer)

    def _with_cookie(self, access: Access) -> Answer:
        """The page without the token in its address, where histories would keep it."""
        cookie = f"{access.cookie}={access.token}; Path=/; HttpOnly; SameSite=Lax"
        headers = {"Location": "/", "Set-Cookie": cookie}
        return Answer(status=303, kind="text/plain", headers=headers)

    def _body(self) -> tuple[dict[str, Any], Answer | None]:
        """The JSON object that came along, or why it is not taken."""
        headers = {name.lower(): text for name, text in self.headers.items()}
        if not self._page.access.same_site(headers):
            return {}, problem(403, "Requests from other sites are refused.")
        if headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            return {}, problem(415, "Send application/json.")
        length = headers.get("content-length", "")
        if not re.fullmatch(r"[0-9]{1,9}", length) or int(length) > _BODY_MAX:
            return {}, problem(413, f"Send at most {_BODY_MAX} bytes, and say how many.")
        try:
            document = json.loads(self.rfile.read(int(length)))
        except (ValueError, RecursionError):
            document = None
        if not isinstance(document, dict):
            return {}, problem(400, "Send a JSON object.")
        return cast("dict[str, Any]", document), None

    def _send(self, answer: Answer) -> None:
        if answer.file is not None:
            try:
                return self._send_file(answer, answer.file)
            finally:
                os.close(answer.file)
        if answer.tag and self.headers.get("If-None-Match") == answer.tag:
            return self._begin(answer, 304, 0, {})
        data, packed = answer.data, answer.packed
        takes = "gzip" in self.headers.get("Accept-Encoding", "")
        if packed and not takes:
            data, packed = gzip.decompress(data), False
        elif takes and not packed and len(data) >= _PACKED_FROM:
            data, packed = gzip.compress(data, 4), True
        more = {"Content-Encoding": "gzip", "Vary": "Accept-Encoding"} if packed else {}
        self._begin(answer, answer.status, len(data), more)
        if self.command != "HEAD":
            self.wfile.write(data)
        return None

    def _send_file(self, answer: Answer, handle: int) -> None:
        size = os.fstat(handle).st_size
        status, more, (first, last) = ranged(self.headers.get("Range"), size)
        self._begin(answer, status, last - first, more)
        while self.command != "HEAD" and first < last:
            data = os.pread(handle, min(_CHUNK, last - first), first)
            if not data:  # it was cut while we sent it
                self.close_connection = True
                break
            self.wfile.write(data)
            first += len(data)

    def _begin(self, answer: Answer, status: int, length: int, more: dict[str, str]) -> None:
        self.send_response(status)
        headers = {**answer.all_headers(), "Content-Length": str(length), **more}
        for name, text in headers.items():
            self.send_header(name, text)
        self.end_headers()


def ranged(header: str | None, size: int) -> tuple[int, dict[str, str], tuple[int, int]]:
    """How a file of `size` bytes is sent: status, headers, first and last+1 byte."""
    span = _span(header, size)
    if span is None:
        return 416, {"Content-Range": f"bytes */{size}"}, (0, 0)
    more = {"Accept-Ranges": "bytes"}
    if header is None or size == 0:
        return 200, more, span
    return 206, {**more, "Content-Range": f"bytes {span[0]}-{span[1] - 1}/{size}"}, span


def _span(header: str | None, size: int) -> tuple[int, int] | None:
    """First and last+1 byte of a Range header, of everything without one; None = not to be had."""
    if header is None:
        return 0, size
    match = re.fullmatch(r"bytes=([0-9]{0,18})-([0-9]{0,18})", header.strip())
    if match is None or not (match[1] or match[2]) or size == 0:
        return 0, size
    if not match[1]:
        return (max(0, size - int(match[2])), size) if int(match[2]) else None
    first = int(match[1])
    last = min(size, int(match[2]) + 1) if match[2] else size
    return (first, last) if first < min(size, last) else None


def serve(server: PageServer) -> None:
    """Answer until Ctrl-C or SIGTERM; open pages lose their connection, runs are not touched."""
    with server, contextlib.suppress(KeyboardInterrupt):
        server.serve_forever(poll_interval=0.2)
