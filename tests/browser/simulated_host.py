"""Pages with the limits of hosts that do not run here: a server for one widget, a comm by hand."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from workbench_widgets.face import Face

from tests.browser.lab import Page

WEBVIEW = (
    "default-src 'none'; script-src 'nonce-cell' blob:; style-src 'unsafe-inline'; img-src data:"
)
"""Of a notebook's webview in VS Code: nothing is fetched, scripts are the host's own or blobs."""
CELL = """<!doctype html><meta charset="utf-8"><body><div id="cell"></div><script nonce="cell" type="module">
const { state, esm } = DATA;
const handlers = {};
const tell = (name, ...about) => [...(handlers[name] ?? [])].forEach((handler) => handler(...about));
window.sent = [];
window.violations = [];
document.addEventListener("securitypolicyviolation", (event) => window.violations.push(event.violatedDirective));
const model = {
  get: (name) => state[name], save_changes() {}, send: (content) => void window.sent.push(content),
  on: (name, handler) => (handlers[name] ??= new Set()).add(handler),
  off: (name, handler) => handlers[name]?.delete(handler),
};
window.receive = (content, buffers) => tell("msg:custom", content,
  buffers.map((text) => new DataView(Uint8Array.from(atob(text), (one) => one.charCodeAt(0)).buffer)));
window.change = (name, value) => { state[name] = value; tell(`change:${name}`); };
const url = URL.createObjectURL(new Blob([esm], { type: "text/javascript" })); // as anywidget loads it
const loader = await import(url);
await loader.default.render({ model, el: document.getElementById("cell") });
</script>"""
FRAME = '<!doctype html><iframe sandbox="allow-scripts" src="/cell" width="1300" height="1100"></iframe>'


class SimulatedHost:
    """Serves a widget's page at /cell, and at / a page with it in a frame of another origin."""

    def __init__(self, widget: Face, policy: str = "") -> None:
        self.widget, self._outgoing = widget, list[tuple[str, Any, Any]]()
        state = {name: value for name, value in widget.get_state().items() if name != "layout"}
        data = json.dumps({"state": state, "esm": str(state["_esm"])}, default=str)
        cell = CELL.replace("DATA", data.replace("<", "\\u003c"), 1)
        widget.send = self._send  # pyright: ignore[reportAttributeAccessIssue]
        widget.observe(
            lambda change: self._outgoing.append(("change", change["name"], change["new"]))
        )

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                pages = {"/": FRAME, "/cell": cell}
                self.send_response(200 if self.path in pages else 404)
                self.send_header("Content-Type", "text/html; charset=utf-8")
                if policy and self.path == "/cell":
                    self.send_header("Content-Security-Policy", policy)
                self.end_headers()
                self.wfile.write(pages.get(self.path, "").encode())

            def log_message(self, *_words: object) -> None:
                """Nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def _send(self, content: Any, buffers: Any = None) -> None:
        packed = [base64.b64encode(bytes(one)).decode() for one in buffers or ()]
        self._outgoing.append(("receive", content, packed))

    def exchange(self, page: Page) -> None:
        """Carry what the page has sent to the widget, and its answers to the page."""
        for message in page.js("return window.sent?.splice(0) ?? []"):
            self.widget._on_message(self.widget, message, None)
        while self._outgoing:
            page.js("window[arguments[0]](arguments[1], arguments[2])", *self._outgoing.pop(0))

    def until(self, page: Page, what: str, check: Callable[[], Any]) -> Any:
        """Wait for the page while messages go to and fro."""

        def carried() -> Any:
            self.exchange(page)
            return check()

        return page.until(what, carried, 60)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self.widget.close()
