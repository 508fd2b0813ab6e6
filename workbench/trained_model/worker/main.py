"""The worker's protocol: JSON lines in and out; prints of libraries go to stderr.

A reading thread takes the requests: the main thread works at one of them, and ``stop`` and the end
of the input are heard meanwhile.
"""

from __future__ import annotations

import json
import os
import queue
import shutil
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

from workbench.errors import HostError, UsageError, pip_install

Say = Callable[[dict[str, Any]], None]


class Requests:
    """What the parent sends."""

    def __init__(self) -> None:
        self.waiting: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self.stopped = threading.Event()
        """Set while the answer that is under way should end."""
        self._folder: str | None = None  # goes when the parent is gone
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in sys.stdin.buffer:
            request: dict[str, Any] = json.loads(line)
            if request.get("task") == "stop":
                self.stopped.set()
            else:
                self.stopped.clear()
                self._folder = request.get("partial")
                self.waiting.put(request)
        if self._folder:  # the parent was killed: nothing half is left
            shutil.rmtree(self._folder, ignore_errors=True)
        os._exit(0)


def main() -> None:
    """Work at the requests, one after the other."""
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)

    def say(message: dict[str, Any]) -> None:
        answers.write(json.dumps(message).encode() + b"\n")

    requests = Requests()
    while True:
        request = requests.waiting.get()
        try:
            _work(request, requests.stopped, say)
        except UsageError as error:
            say({"error": str(error), "kind": "usage"})
        except HostError as error:
            say({"error": str(error), "kind": "host"})
        except ModuleNotFoundError as error:
            text = f"The Python package {error.name} is missing: {pip_install(error.name or '')}"
            say({"error": text, "kind": "host"})
        except Exception as error:  # noqa: BLE001 - reported to the parent
            traceback.print_exc()
            first = (str(error).strip() or "no message").splitlines()[0]
            say({"error": f"{type(error).__name__}: {first}"})


def _work(request: dict[str, Any], stopped: threading.Event, say: Say) -> None:
    """One request. What a task needs is loaded with it."""
    task = request["task"]
    if task == "export":
        from workbench.trained_model.worker.exporting import export  # noqa: PLC0415

        export(request, say)
    elif task in {"hub-look", "hub-upload"}:
        from workbench.trained_model.worker import hub  # noqa: PLC0415

        (hub.look if task == "hub-look" else hub.upload)(request, say)
    else:
        from workbench.trained_model.worker.answering import answer  # noqa: PLC0415

        answer(request, stopped, say)


if __name__ == "__main__":
    main()
