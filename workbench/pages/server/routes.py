"""What each address answers.

Reading::

    GET  /                                 the page
    GET  /static/VERSION/NAME              its modules, style sheets and plotly.js
    GET  /api/runs                         the table's rows, with an entity tag
    GET  /api/runs/RUN                     what is known before the first view, has it a report
    GET  /files/RUN/view.json              the view; with ?since=V what changed since version V
    GET  /files/RUN/logs/rank-0.log        logs, samples, metrics (ranges), report.html, exit.json
    POST /api/runs/RUN/ask                 a question: window, runs, view, status, series

Acting, with the token::

    POST /api/runs/RUN/act                 {"type": "stop" | "resume" | "adopt" | "profile" | …}
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workbench.errors import WorkbenchError, sentence
from workbench.launching.run import Run
from workbench.observe.text_samples import PICTURE
from workbench.observe.view_json import finite
from workbench.pages import actions
from workbench.pages.pauses import pause_seconds
from workbench.pages.questions import QUESTIONS, answer, status_message
from workbench.pages.run_rows import about_run, read_table, series_message
from workbench.pages.server import html, static_files
from workbench.pages.snapshots import Snapshots
from workbench.store import names
from workbench.store.files import open_file
from workbench.store.layout import RunPaths
from workbench.store.runs import Store

_RUNS_KEPT = 16  # whose latest views are held
_ROWS_SECONDS = 1.5  # least time between two readings of the store
_VERSIONS_KEPT = 4  # of each: as many pages may lag behind
_PART = re.compile(
    r"logs/(rank-\d+|launcher|launcher-node-\d+|supervisor)\.log|system\.jsonl"
    r"|nodes/system-\d+\.jsonl|metrics/rank-\d+\.jsonl|report\.html|exit\.json"
    rf"|{PICTURE}"
)
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".json": "application/json",
    ".png": "image/png",
}


_PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'"
)
_DATA_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
    "form-action 'none'; sandbox"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What is sent back; `data` or `file`."""

    status: int = 200
    """HTTP's."""
    kind: str = "application/json"
    """MIME type."""
    data: bytes = b""
    """The body."""
    file: int | None = None
    """An open file whose bytes are the body; the sender closes it."""
    packed: bool = False
    """Whether `data` is compressed with gzip already."""
    is_cacheable: bool = False
    """Whether browsers may keep it for a year: its address names its version."""
    page: bool = False
    """Whether it is our page, which runs our scripts; everything else runs none."""
    tag: str = ""
    """HTTP's entity tag: a client that has this content gets a 304 instead."""
    headers: dict[str, str] = field(default_factory=dict[str, str])
    """More of them."""

    def all_headers(self, *, framed_by: str = "'none'") -> dict[str, str]:
        """HTTP's headers, the length aside. `framed_by`: whose pages may show it in a frame."""
        policy = _PAGE_POLICY if self.page else _DATA_POLICY
        return {
            "Content-Type": self.kind,
            "Cache-Control": "private, max-age=31536000, immutable"
            if self.is_cacheable
            else "no-store",
            **({"ETag": self.tag} if self.tag else {}),
            "Content-Security-Policy": f"{policy}; frame-ancestors {framed_by}",
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cross-Origin-Resource-Policy": "same-origin",
            **self.headers,
        }


def as_json(value: Any, status: int = 200) -> Answer:
    """A JSON answer."""
    return Answer(status=status, data=_encoded(value))


def _encoded(value: Any) -> bytes:
    return json.dumps(finite(value), allow_nan=False, separators=(",", ":")).encode()


def problem(status: int, text: str) -> Answer:
    """An error, in words."""
    return as_json({"error": text}, status)


class Routes:
    """The addresses of one store's page."""

    def __init__(self, store: Path, *, base: str = "", server: str = html.SERVER) -> None:
        """`base`: the path that its addresses begin with; `server`: what people call the server."""
        self._store = store
        self._base, self._server = base, server
        self._lock = threading.Lock()
        self._reading = threading.Lock()
        self._resuming = set[str]()
        self._table, self._rows_until = Answer(), 0.0
        self._snapshots: OrderedDict[str, Snapshots] = OrderedDict()

    def get(self, path: str, query: dict[str, str], *, acts: bool) -> Answer:
        """`acts`: whether the asker may act, too."""
        match path.split("/"):
            case ["", ""]:
                text = html.page(
                    self._store,
                    static_files.version(),
                    acts=acts,
                    base=self._base,
                    server=self._server,
                )
                return Answer(kind="text/html; charset=utf-8", data=text.encode(), page=True)
            case ["", "favicon.ico"]:
                return Answer(kind="image/svg+xml", data=html.ICON.encode())
            case ["", "static", _, name]:
                return self._static(name)
            case ["", "files", run, *part]:
                return self._file(run, "/".join(part), query)
            case ["", "api", "runs", *run]:
                return self._about(*run) if len(run) == 1 else self._rows()
            case _:
                return problem(404, f"There is nothing at {path}")

    def _static(self, name: str) -> Answer:
        file = static_files.read(name)
        if file is None:
            return problem(404, f"The page has no file {name}")
        return Answer(kind=file.kind, data=file.data, packed=True, is_cacheable=True)

    def post(self, path: str, message: dict[str, Any], *, acts: bool) -> Answer:
        """A question or, where the asker `acts`, an action; answers the messages for the page."""
        match = re.fullmatch(r"/api/runs/([^/]+)/(ask|act)", path)
        run = self._run(match[1]) if match else None
        if match is None or run is None:
            return problem(404, f"There is nothing at {path}")
        if match[2] == "ask":
            return self._ask(run, message)
        if not acts:
            return problem(403, "This needs the token that workbench ui printed.")
        answer = self._act(run, message)
        self._rows_until = 0.0  # who acted sees at once what came of it
        return answer

    def _run(self, name: str) -> RunPaths | None:
        """A run by its exact id, a folder of the store itself."""
        try:
            paths = Store(self._store).find(name) if names.is_id(name) else None
        except WorkbenchError:
            return None
        return paths if paths is not None and paths.directory.name == name else None

    def _rows(self) -> Answer:
        """The table; pages that ask at the same time share one reading of the store."""
        with self._reading:
            begun = time.monotonic()
            if begun >= self._rows_until:
                self._table = self._read_rows()
                ended = time.monotonic()
                self._rows_until = ended + pause_seconds(ended - begun, _ROWS_SECONDS)
            return self._table

    def _read_rows(self) -> Answer:
        try:
            data = _encoded(read_table(self._store))
        except WorkbenchError as error:  # pages keep the rows that they have
            return problem(503, sentence(error))
        return Answer(data=data, tag=f'"{hashlib.sha256(data).hexdigest()[:20]}"')

    def _about(self, name: str) -> Answer:
        run = self._run(name)
        if run is None:
            return problem(404, f"There is no run {name} in this store")
        return as_json({**about_run(run.directory), "report": run.report.is_file()})

    def _file(self, name: str, part: str, query: dict[str, str]) -> Answer:
        run = self._run(name)
        if run is not None and part == "view.json":
            return self._view(run, query.get("since"))
        if run is None or not _PART.fullmatch(part):
            return problem(404, f"There is no {part} here")
        kind = _TYPES.get(os.path.splitext(part)[1], "text/plain; charset=utf-8")  # noqa: PTH122
        try:
            return Answer(kind=kind, file=open_file(run.directory / part))
        except FileNotFoundError:
            if part in {"report.html", "exit.json"}:
                return problem(404, f"There is no {part} yet")
            return Answer(kind=kind)  # a rank that has not written yet
        except OSError as error:
            return problem(404, f"{part} cannot be read: {error.strerror or error}")

    def _view(self, run: RunPaths, since: str | None) -> Answer:
        message = self._latest(run).since(since)
        if since is not None:
            return as_json(message or {"type": "snapshot", "version": None, "view": None})
        return problem(404, "No view yet") if message is None else as_json(message["view"])

    def _latest(self, run: RunPaths) -> Snapshots:
        name = run.directory.name
        with self._lock:
            snapshots = self._snapshots.setdefault(
                name, Snapshots(run.directory, versions_max=_VERSIONS_KEPT)
            )
            self._snapshots.move_to_end(name)
            while len(self._snapshots) > _RUNS_KEPT:
                self._snapshots.popitem(last=False)
        return snapshots

    def _ask(self, run: RunPaths, message: dict[str, Any]) -> Answer:
        kind = message.get("type")
        if kind == "status":
            return as_json([status_message(run)])
        if kind == "series":
            return as_json([series_message(run.directory)])
        if isinstance(kind, str) and kind in QUESTIONS:
            return as_json([answer(kind, run, message)])
        return problem(400, f"No question is called {kind!r}")

    def _act(self, paths: RunPaths, message: dict[str, Any]) -> Answer:
        kind, run = message.get("type"), Run(paths)
        messages: list[actions.Message] = []
        if kind == "profile":
            actions.profile(run, messages.append)
            return as_json(messages)
        if kind == "steer":
            return as_json([actions.steer(run, message)])
        if kind == "stop":
            outcome = actions.stop(run, now=message.get("now") is True)
        elif kind == "adopt":
            outcome = self._once(run, lambda: actions.adopt(run))
        elif kind == "resume":
            name = message.get("checkpoint")
            checkpoint = name if isinstance(name, str) else None
            outcome = self._once(run, lambda: actions.resume(run, checkpoint))
        else:
            return problem(400, f"No action is called {kind!r}")
        return as_json([{"type": "resumed", **outcome}] if outcome else [])

    def _once(self, run: Run, act: Callable[[], actions.Message]) -> actions.Message:
        """A double click is one resumption. It may take minutes, and nothing else waits for it."""
        with self._lock:
            if run.id in self._resuming:
                return {"bad": True, "run": run.id, "text": "It is being resumed already."}
            self._resuming.add(run.id)
        try:
            return act()
        finally:
            with self._lock:
                self._resuming.discard(run.id)
