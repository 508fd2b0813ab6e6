"""What every face of one run does: it sends snapshots and assets, and passes on Stop and Resume."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import workbench as wb
from workbench.pages import actions
from workbench.pages.file_parts import file_part
from workbench.pages.questions import QUESTIONS, answer, status_message
from workbench.pages.run_rows import about_run
from workbench.store.layout import RunPaths
from workbench_widgets.face import Face
from workbench_widgets.fallback_output import show, store_config
from workbench_widgets.rereading import check_pause
from workbench_widgets.run.snapshots import SnapshotPusher

_TRANSPORTS = ("auto", "comm")


class RunFace(Face):
    """A widget over the files of one run. Callbacks hand over to threads: none of them blocks."""

    _pusher: SnapshotPusher | None = None

    def __init__(self, run: Any, config: dict[str, Any]) -> None:
        self.run = run
        self._paths = RunPaths(Path(run.directory))
        self._resuming, self._profiling = threading.Lock(), threading.Lock()
        self._pusher = SnapshotPusher(run, self._push)
        super().__init__(config)

    def _push(self, snapshot: dict[str, Any]) -> None:
        self.send(snapshot)

    def _receive(self, kind: str, message: dict[str, Any]) -> None:
        if self._pusher is not None:
            self._pusher.heard()
        if kind in {"subscribe", "rest", "wake"}:
            self._pace(kind)
        elif kind in QUESTIONS:
            self._begin("question", functools.partial(self._answer, kind, message))
        else:
            acts: dict[str, Callable[[dict[str, Any]], None]] = {
                "status": self._send_status,
                "part": self._send_part,
                "stop": self._stop,
                "adopt": self._adopt,
                "resume": self._resume_once,
                "profile": self._profile,
                "steer": self._steer,
            }
            if kind in acts:
                self._begin(kind, functools.partial(acts[kind], message))

    def _begin(self, name: str, act: Callable[[], None]) -> None:
        """Leave it to a thread: the kernel is not held up."""
        threading.Thread(target=act, name=f"workbench-{name}", daemon=True).start()

    def _pace(self, kind: str) -> None:
        """A page wants snapshots, or fewer of them while no one looks at it."""
        if self._pusher is not None:
            if kind == "subscribe":
                self._pusher.start()
            else:
                self._pusher.set_resting(resting=kind == "rest")

    def _send_status(self, _message: dict[str, Any]) -> None:
        self.send(status_message(self._paths))

    def _answer(self, kind: str, message: dict[str, Any]) -> None:
        """What the page asked of the store's files."""
        self.send(answer(kind, self._paths, message))

    def _send_part(self, message: dict[str, Any]) -> None:
        """Answer with bytes of one of the run's files, as Jupyter's ``/files/`` would."""
        part = file_part(Path(self.run.directory), message)
        about = {"start": None, "size": None} if part is None else part.about
        buffers = [] if part is None else [part.data]
        self.send({"type": "part", "id": message.get("id"), **about}, buffers)

    def _stop(self, message: dict[str, Any]) -> None:
        self._say(actions.stop(self.run, now=bool(message.get("now"))))

    def _adopt(self, _message: dict[str, Any]) -> None:
        """Have a run watched again whose supervisor is gone."""
        message = actions.adopt(self.run)
        if self._pusher is not None:
            self._pusher.resumed()
        self._say(message)

    def _say(self, message: actions.Message | None) -> None:
        if message is not None:
            self.send({"type": "resumed", **message})

    def _resume_once(self, message: dict[str, Any]) -> None:
        name = message.get("checkpoint")
        if not self._resuming.acquire(blocking=False):
            return  # a double click is one resumption
        try:
            self._say(self.resume(name if isinstance(name, str) else None))
        finally:
            self._resuming.release()

    def resume(self, checkpoint: str | None = None) -> dict[str, Any]:
        """Resume the run from `checkpoint`, or from its newest complete one; returns the result."""
        message = actions.resume(self.run, checkpoint)
        if not message["bad"] and self._pusher is not None:
            self._pusher.resumed()
        return message

    def _profile(self, _message: dict[str, Any]) -> None:
        """Trace the next steps, and say in a sentence what came of it."""
        if not self._profiling.acquire(blocking=False):
            return  # a double click is one trace
        try:
            actions.profile(self.run, self.send)
        finally:
            self._profiling.release()

    def _steer(self, message: dict[str, Any]) -> None:
        """Ask the training for something, and say in a sentence what came of it."""
        self.send(actions.steer(self.run, message))

    def close(self) -> None:
        """End the widget. The run continues."""
        if self._pusher is not None:
            self._pusher.stop()
        super().close()

    def _ipython_display_(self) -> None:
        show(self._repr_mimebundle_(), self.config)


def handle_of(run: Any, store: Path | None = None) -> Any:
    """The run itself, or the one of this name. Raises UsageError: there is none, or several."""
    name: Any = run  # what is no single name is refused where it is looked up
    is_name = run is None or isinstance(run, str | Path | Collection)
    return wb.attach(name, store=store) if is_name else run


def check_transport(transport: str, refresh_seconds: Any) -> None:
    """Refuse what cannot be. Raises ValueError: an option out of its range."""
    if transport not in _TRANSPORTS:
        raise ValueError(f"transport={transport!r}: choose one of {', '.join(_TRANSPORTS)}")
    check_pause(refresh_seconds, longest=60)


def run_config(run: Any, *, face: str, **own: Any) -> dict[str, Any]:
    """Everything the front end needs to find the run, and what is known before its first view."""
    directory, run_id = Path(run.directory), str(run.id)
    served = own["transport"] == "auto"
    config = store_config(directory.parent, face=face, served=served, run=run_id, **own)
    store_path = config["store_path"]
    config["run_path"] = (
        None if store_path is None else f"{store_path}/{directory.name}".lstrip("/")
    )
    config["directory"] = str(directory.absolute())
    config["about"] = about_run(directory)
    return config
