"""The pages inside a Jupyter server, behind its login: for JupyterLab's status bar and its tabs.

Below the server's base address::

    GET  workbench/live                 the live runs of this host, the newest ends, the own store
    *    workbench/stores/STORE/…       the page of a store, as `workbench ui` serves it (`routes`);
                                        STORE is its folder, in URL-safe base 64

Who is logged in to Jupyter can run any code as this user, so may also stop and resume runs here.
Only Jupyter imports this module: `jupyter_server_config.json` in `environments/` names it.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import functools
import gzip
import json
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from jupyter_server.auth.decorator import authorized
from jupyter_server.base.handlers import JupyterHandler
from jupyter_server.utils import url_path_join
from tornado import web

from workbench.errors import UsageError, WorkbenchError, sentence
from workbench.store.commands import STORE_VARIABLE

if TYPE_CHECKING:
    from workbench.pages.live_runs import LiveRuns
    from workbench.pages.server.routes import Answer, Routes

_STORES_KEPT = 16
_CHUNK = 1 << 18


def _jupyter_server_extension_points() -> list[dict[str, str]]:  # pyright: ignore[reportUnusedFunction] - Jupyter's
    return [{"module": "workbench.pages.jupyter"}]


def _load_jupyter_server_extension(server: Any) -> None:  # pyright: ignore[reportUnusedFunction] - Jupyter's
    """Add our addresses. What answers is imported when one is asked for: Jupyter starts quickly."""
    base = url_path_join(server.web_app.settings["base_url"], "workbench")
    pages = _Pages(base, Path(server.root_dir))
    server.web_app.add_handlers(
        ".*$",
        [
            (url_path_join(base, "live"), _LiveHandler, {"pages": pages}),
            (url_path_join(base, r"stores/([A-Za-z0-9_-]+)(/.*)"), _StoreHandler, {"pages": pages}),
        ],
    )


class _Pages:
    """What the handlers share. Its methods may be called in any thread."""

    def __init__(self, base: str, root: Path) -> None:
        self.base, self.root = base, root
        self.own_store = Path(os.environ.get(STORE_VARIABLE) or root / "runs").absolute()
        self._routes: OrderedDict[str, Routes] = OrderedDict()
        self._lock = threading.Lock()

    @functools.cached_property
    def live(self) -> LiveRuns:
        """The live runs of this host."""
        from workbench.pages.live_runs import LiveRuns  # noqa: PLC0415 - see above

        return LiveRuns()

    def address(self, store: str) -> str:
        """Of a store's page."""
        key = base64.urlsafe_b64encode(os.fsencode(store)).decode().rstrip("=")
        return url_path_join(self.base, "stores", key)

    def routes(self, key: str) -> Routes:
        """Of a store.

        Raises:
            UsageError: the key is none.
        """
        from workbench.pages.server.routes import Routes  # noqa: PLC0415 - see above

        with self._lock:
            if key not in self._routes:
                folder = _folder(key)
                base = self.address(folder)
                self._routes[key] = Routes(Path(folder), base=base, server="Jupyter")
            self._routes.move_to_end(key)
            while len(self._routes) > _STORES_KEPT:
                self._routes.popitem(last=False)
            return self._routes[key]

    def document(self) -> Answer:
        """What the status bar shows, each run with the address of its store's page."""
        from workbench.pages.server.routes import as_json  # noqa: PLC0415 - see above

        live, ended = self.live.read()
        own = self.address(str(self.own_store))
        return as_json(
            {"runs": self._with_page(live), "ended": self._with_page(ended), "page": own}
        )

    def _with_page(self, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Those of this server's folder (`own`) come first: a host may have other servers."""
        pages = [
            {
                **row,
                "page": self.address(row["store"]),
                "own": self._is_own(Path(row["store"])),
            }
            for row in rows
        ]
        return sorted(pages, key=lambda row: not row["own"])

    def _is_own(self, store: Path) -> bool:
        """Below this server's folder, by its name or by where that really lies."""
        return store.is_relative_to(self.root) or store.resolve().is_relative_to(
            Path(self.root).resolve()
        )


def _folder(key: str) -> str:
    """The store that a key stands for. Raises UsageError."""
    try:
        folder = os.fsdecode(base64.urlsafe_b64decode(key + "=" * (-len(key) % 4)))
    except (binascii.Error, ValueError):
        folder = ""
    if not folder.startswith("/") or "\0" in folder:
        raise UsageError("This address names no store. Open the page from JupyterLab again.")
    return folder


class _Handler(JupyterHandler):
    auth_resource = "workbench"

    def initialize(self, pages: _Pages) -> None:
        """Tornado's way to give a handler what it needs."""
        self.pages = pages

    async def respond(self, route: Callable[[], Answer]) -> None:
        """Send what `route` answers, found in another thread: files may be slow."""
        answer = await asyncio.to_thread(_tried, route)
        for name, text in answer.all_headers(framed_by="'self'").items():
            self.set_header(name, text)
        self.set_status(answer.status)
        if answer.file is not None:
            try:
                await self._send_file(answer.file)
            finally:
                os.close(answer.file)
            return
        if answer.page:
            _ = self.xsrf_token  # reading it sets the cookie that our page sends back
        data: bytes | None = answer.data
        if answer.tag and self.request.headers.get("If-None-Match") == answer.tag:
            self.set_status(304)
            data = None
        elif answer.packed and "gzip" in self.request.headers.get("Accept-Encoding", ""):
            self.set_header("Content-Encoding", "gzip")
        elif answer.packed:
            data = gzip.decompress(answer.data)
        await self._finish(data)

    async def _finish(self, data: bytes | None = None) -> None:
        await cast("Any", self).finish(data)  # tornado's own types are half known

    async def _send_file(self, handle: int) -> None:
        from workbench.pages.server.http import ranged  # noqa: PLC0415 - see above

        range_header = self.request.headers.get("Range")
        status, more, (first, last) = ranged(range_header, os.fstat(handle).st_size)
        self.set_status(status)
        for name, text in more.items():
            self.set_header(name, text)
        while first < last:
            data = await asyncio.to_thread(os.pread, handle, min(_CHUNK, last - first), first)
            if not data:  # it was cut while we sent it
                break
            cast("Any", self).write(data)
            await self.flush()
            first += len(data)
        await self._finish()


def _tried(route: Callable[[], Answer]) -> Answer:
    from workbench.pages.server.routes import problem  # noqa: PLC0415 - see above

    try:
        return route()
    except UsageError as error:
        return problem(404, str(error))
    except (OSError, WorkbenchError) as error:  # a store that went away, a full disk
        return problem(500, sentence(error))
    except RecursionError:
        return problem(400, "What was sent is nested too deeply.")


class _LiveHandler(_Handler):
    @web.authenticated
    @authorized
    async def get(self) -> None:
        await self.respond(self.pages.document)


class _StoreHandler(_Handler):
    @web.authenticated
    @authorized
    async def get(self, key: str, path: str) -> None:
        query = {name: self.get_query_argument(name) for name in self.request.query_arguments}
        await self.respond(lambda: self.pages.routes(key).get(path, query, acts=True))

    @web.authenticated
    @authorized
    async def post(self, key: str, path: str) -> None:
        message: Any = None
        with contextlib.suppress(ValueError, RecursionError):
            message = json.loads(self.request.body)
        if not isinstance(message, dict):
            raise web.HTTPError(400, "Send a JSON object.")
        document = cast("dict[str, Any]", message)
        await self.respond(lambda: self.pages.routes(key).post(path, document, acts=True))
