"""Entry point of the simulation's process: requests on stdin, JSON lines on stdout.

``python -m workbench.estimate.simulation.child`` reads base64 lines of pickled requests from its
own parent only. What user code prints goes to stderr.
"""
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import base64
import importlib.util
import json
import os
import queue
import select
import sys
import threading
import traceback
from pickle import loads
from typing import Any

_POLL_SECONDS = 1.0


def main() -> None:
    """Answer requests until the input ends, which it does when the parent is gone."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    requests: queue.Queue[bytes] = queue.Queue()
    threading.Thread(target=_listen, args=(requests, os.getppid()), daemon=True).start()

    def send(message: dict[str, Any]) -> None:
        answers.write(json.dumps(message) + "\n")
        answers.flush()

    def report(fraction: float, text: str) -> None:
        send({"progress": fraction, "text": text})

    while True:
        line = requests.get()
        report(0.0, "loading torch")
        send(_answer(line, report))


def _listen(requests: queue.Queue[bytes], parent: int) -> None:
    """Pass lines on; end the process at once when the parent has gone."""
    pending = b""
    while True:
        ready, _, _ = select.select([0], [], [], _POLL_SECONDS)
        if os.getppid() != parent:  # a forked sibling may hold our input open
            os._exit(1)
        if not ready:
            continue
        data = os.read(0, 1 << 16)
        if not data:
            os._exit(0)
        *lines, pending = (pending + data).split(b"\n")
        for line in lines:
            requests.put(line)


def _answer(line: bytes, report: Any) -> dict[str, Any]:
    from workbench.errors import pip_install  # noqa: PLC0415

    for needed in ("torch", "transformers"):
        if importlib.util.find_spec(needed) is None:
            return {"refused": f"The simulation needs {needed}: {pip_install(needed)}."}
    from workbench.estimate.simulation.refusal import CannotSimulateError  # noqa: PLC0415
    from workbench.estimate.simulation.run import run_workload  # noqa: PLC0415  (loads torch)
    from workbench.estimate.simulation.user import run_function  # noqa: PLC0415  (loads torch)

    try:
        request = loads(base64.b64decode(line))  # noqa: S301  (written by our own parent)
        steps, strategy = request["steps"], request["strategy"]
        if "function" in request:
            result = run_function(
                request["function"],
                strategy,
                steps=steps,
                report=report,
                card_bytes=request["card_bytes"],
            )
        else:
            result = run_workload(request["workload"], strategy, steps=steps, report=report)
    except CannotSimulateError as error:
        return {"refused": str(error)}
    except Exception as error:  # noqa: BLE001  (whatever it is, the caller reads it)
        traceback.print_exc()
        first = str(error).strip().split("\n")[0]
        where = traceback.extract_tb(error.__traceback__)[-1]
        return {
            "refused": f"cannot be simulated: {type(error).__name__}: {first} "
            f"({os.path.basename(where.filename)}:{where.lineno})"  # noqa: PTH119
        }
    return {"result": result | {"card_bytes": request["card_bytes"]}}


if __name__ == "__main__":
    sys.exit(main())
