"""What every face of one run does: it sends snapshots and assets, and passes on Stop and Resume."""

from __future__ import annotations

import functools
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Any

from workbench.errors import WorkbenchError
from workbench.store.layout import RunPaths
from workbench.store.status import read_status
from workbench_widgets.face import Face, sentence
from workbench_widgets.fallback_output import show
from workbench_widgets.run.file_parts import file_part
from workbench_widgets.run.questions import QUESTIONS
from workbench_widgets.run.snapshots import SnapshotPusher

_TRANSPORTS = ("auto", "comm")


class RunFace(Face):
    """A widget over the files of one run. Callbacks hand over to threads: none of them blocks."""

    _pusher: SnapshotPusher | None = None

    def __init__(self, run: Any, config: dict[str, Any]) -> None:
        self.run = run
        self._resuming = threading.Lock()
        self._pusher = SnapshotPusher(run, self._push)
        super().__init__(config)

    def _push(self, snapshot: dict[str, Any]) -> None:
        self.send(snapshot)

    def _receive(self, kind: str, message: dict[str, Any]) -> None:
        if kind == "subscribe":
            if self._pusher is not None:
                self._pusher.start()
        elif kind == "status":
            threading.Thread(target=self._send_status, name="workbench-status", daemon=True).start()
        elif kind in QUESTIONS:
            ask = functools.partial(self._answer, kind, message)
            threading.Thread(target=ask, name="workbench-question", daemon=True).start()
        elif kind == "stop":
            now = bool(message.get("now"))
            stop = functools.partial(self._stop, now=now)
            threading.Thread(target=stop, name="workbench-stop", daemon=True).start()
        elif kind == "part":
            send = functools.partial(self._send_part, message)
            threading.Thread(target=send, name="workbench-part", daemon=True).start()
        elif kind == "adopt":
            threading.Thread(target=self._adopt, name="workbench-adopt", daemon=True).start()
        elif kind == "profile":
            threading.Thread(target=self._profile, name="workbench-profile", daemon=True).start()
        elif kind == "resume":
            name = message.get("checkpoint")
            wanted = name if isinstance(name, str) else None
            resume = functools.partial(self._resume_once, wanted)
            threading.Thread(target=resume, name="workbench-resume", daemon=True).start()

    def _send_status(self) -> None:
        """Answer with what the command line would say of the run's state now."""
        status = read_status(RunPaths(Path(self.run.directory)))
        self.send({"type": "status", **asdict(status)})

    def _answer(self, kind: str, message: dict[str, Any]) -> None:
        """What the page asked of the store's files; None where they do not tell."""
        try:
            value = QUESTIONS[kind](RunPaths(Path(self.run.directory)), message)
        except (OSError, ValueError, WorkbenchError):
            value = None
        self.send({"type": "answer", "id": message.get("id"), "value": value})

    def _send_part(self, message: dict[str, Any]) -> None:
        """Answer with bytes of one of the run's files, as Jupyter's ``/files/`` would."""
        part = file_part(Path(self.run.directory), message)
        about = {"start": None, "size": None} if part is None else part.about
        buffers = [] if part is None else [part.data]
        self.send({"type": "part", "id": message.get("id"), **about}, buffers)

    def _stop(self, *, now: bool) -> None:
        try:
            self.run.request_stop(now=now)
        except Exception as error:  # noqa: BLE001 - another user's run, a full disk: say it
            text = f"Not stopped: {sentence(error)}"
            self.send({"type": "resumed", "bad": True, "run": self.run.id, "text": text})

    def _adopt(self) -> None:
        """Have a run watched again whose supervisor is gone."""
        try:
            watched = self.run.adopt()
            text = "The run has a supervisor again." if watched else "It is watched already."
            said = {"bad": False, "text": text}
        except Exception as error:  # noqa: BLE001 - another user's run, a full disk: say it
            said = {"bad": True, "text": f"Not watched: {sentence(error)}"}
        if self._pusher is not None:
            self._pusher.resumed()
        self.send({"type": "resumed", "run": self.run.id, **said})

    def _resume_once(self, checkpoint: str | None) -> None:
        if not self._resuming.acquire(blocking=False):
            return  # a double click is one resumption
        try:
            self.send({"type": "resumed", **self.resume(checkpoint)})
        finally:
            self._resuming.release()

    def resume(self, checkpoint: str | None = None) -> dict[str, Any]:
        """Resume the run from `checkpoint`, or from its newest complete one; returns the result."""
        try:
            resumed = self.run.resume(checkpoint=checkpoint)
        except Exception as error:  # noqa: BLE001 - whatever it is, the face has to say it
            return {"bad": True, "run": self.run.id, "text": f"Not resumed: {sentence(error)}"}
        if self._pusher is not None:
            self._pusher.resumed()
        here = resumed.id == self.run.id
        text = "Resumed." if here else f"Resumed as {resumed.id}; open it in the list of runs."
        return {"bad": False, "run": resumed.id, "text": text}

    def _profile(self) -> None:
        """Trace the next steps, and say in a sentence what came of it."""
        from workbench_widgets.run.profile import trace_and_send  # noqa: PLC0415 - it shows runs, too

        trace_and_send(self.run, self.send)

    def close(self) -> None:
        """End the widget. The run goes on."""
        if self._pusher is not None:
            self._pusher.stop()
        super().close()

    def _ipython_display_(self) -> None:
        show(self._repr_mimebundle_(), self.config)


def check_transport(transport: str, refresh_seconds: float) -> None:
    """Refuse what cannot be.

    Raises:
        ValueError: an option out of its range.
    """
    if transport not in _TRANSPORTS:
        raise ValueError(f"transport={transport!r}: choose one of {', '.join(_TRANSPORTS)}")
    if not 0.2 <= refresh_seconds <= 60:
        raise ValueError(f"refresh_seconds={refresh_seconds!r}: give 0.2 to 60")
