"""An S3 server (moto's) with faults that a test asks for: ``python -m tests.storage.s3_server``.

It prints its port. ``PUT /__faults__`` takes a JSON list of {"method", "in", "after", "times", "do"}:
of the requests of that method whose path has `in`, the first `after` pass, the next `times` get the
status `do`, or no answer for `do` = "hang". ``GET /__seen__`` lists [method, path, bytes] since.
"""

# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

HANG_SECONDS = 120.0


class Faulty:
    """A WSGI application in front of another one."""

    def __init__(self, inner: Callable[..., Iterable[bytes]]) -> None:
        self._inner = inner
        self._lock = threading.Lock()
        self._faults: list[dict[str, Any]] = []
        self._seen: list[list[Any]] = []

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        path, method = environ.get("PATH_INFO", ""), environ["REQUEST_METHOD"]
        if path == "/__faults__":
            text = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
            with self._lock:
                self._faults, self._seen = json.loads(text), []
            start("200 OK", [])
            return [b""]
        if path == "/__seen__":
            start("200 OK", [("Content-Type", "application/json")])
            return [json.dumps(self._seen).encode()]
        do = self._fault(method, path, int(environ.get("CONTENT_LENGTH") or 0))
        if do == "hang":
            time.sleep(HANG_SECONDS)
        if do is None or do == "hang":
            return self._inner(environ, start)
        environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        start(f"{do} Told to", [("Content-Type", "application/xml")])
        code = {403: "AccessDenied", 503: "SlowDown"}.get(do, "InternalError")
        return [f"<Error><Code>{code}</Code><Message>as told</Message></Error>".encode()]

    def _fault(self, method: str, path: str, size: int) -> Any:
        with self._lock:
            self._seen.append([method, path, size])
            for fault in self._faults:
                if fault["method"] != method or fault["in"] not in path:
                    continue
                if fault.get("after", 0) > 0:
                    fault["after"] -= 1
                elif fault["times"] > 0:
                    fault["times"] -= 1
                    return fault["do"]
        return None


def main() -> None:
    """Serve until it is killed."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
    application = Faulty(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, application, threaded=True)
    print(server.server_port, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
