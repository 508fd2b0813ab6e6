"""The child process from the parent's side: start, follow, cancel; never loads torch.

The child has a session of its own, so that cancelling kills whatever it started, and it watches its
standard input: when the parent is gone, by whatever death, the input ends and so does the child.
"""

from __future__ import annotations

import base64
import contextlib
import importlib
import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from workbench.describe.checks import require_number
from workbench.describe.child_python import SAFE_PYTHON, import_path
from workbench.errors import pip_install
from workbench.estimate.simulation.result import Simulation, SimulationUnavailable

Progress = Callable[[float, str], None]
_CHILD = "workbench.estimate.simulation.child"
_TAIL = 2000  # characters of the child's stderr in an error message


class SimulationProcess:
    """A running simulation of one or several requests, in their order."""

    def __init__(
        self, requests: Sequence[dict[str, Any]], *, timeout_seconds: float = 300.0
    ) -> None:
        require_number("timeout_seconds", timeout_seconds, above=0)
        self.progress: tuple[float, str] = (0.0, "starting")
        self._timeout, self._deadline = timeout_seconds, time.monotonic() + timeout_seconds
        self._answers: list[dict[str, Any]] = []
        self._expected = len(requests)
        self._cancelled = False
        self._changed = threading.Condition()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (closed in _finish)
        lines = [encode(request) for request in requests]
        self._child = subprocess.Popen(
            [*SAFE_PYTHON, "-c", f"from {_CHILD} import main; main()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,
            env=_environment(),
        )
        self._reader = threading.Thread(target=self._read, name="simulation", daemon=True)
        self._reader.start()
        self._writer = threading.Thread(target=self._write, args=(lines,), daemon=True)
        self._writer.start()

    @property
    def pid(self) -> int:
        """The child's process id, which is also its process group."""
        return self._child.pid

    @property
    def running(self) -> bool:
        """Whether the child lives."""
        return self._child.poll() is None

    def wait(self, on_progress: Progress | None = None) -> Simulation:
        """Wait for the first answer.

        Raises:
            SimulationUnavailable: refused, cancelled, out of time, or the child died.
        """
        return self.wait_all(on_progress)[0]

    def wait_all(self, on_progress: Progress | None = None) -> list[Simulation]:
        """Wait for all answers; the child is gone afterwards, also after Ctrl-C.

        Raises:
            SimulationUnavailable: for the first request that has no simulation.
        """
        try:
            self._follow(on_progress)
        finally:
            self._finish()
        return [Simulation.parse(answer["result"]) for answer in self._answers]

    def cancel(self) -> None:
        """Kill the child and everything it started; `wait` then raises."""
        self._cancelled = True
        self._kill()
        with self._changed:
            self._changed.notify_all()

    def _follow(self, on_progress: Progress | None) -> None:
        reported: tuple[float, str] | None = None
        while True:
            with self._changed:
                done = len(self._answers)
                if self._answers and "refused" in self._answers[-1]:
                    raise SimulationUnavailable(self._answers[-1]["refused"])
                if done == self._expected:
                    return
                ended = not self._reader.is_alive()
                if not self._cancelled and not ended:
                    self._changed.wait(timeout=0.1)
            if on_progress is not None and self.progress != reported:
                reported = self.progress
                on_progress(*reported)
            self._check(ended=ended, done=done)

    def _check(self, *, ended: bool, done: int) -> None:
        if self._cancelled:
            raise SimulationUnavailable("The simulation was cancelled.")
        if time.monotonic() > self._deadline:
            raise SimulationUnavailable(
                f"The simulation took longer than {self._timeout:g} s. Give it a larger "
                "timeout_seconds, or use the closed form."
            )
        if ended and len(self._answers) == done:
            code = self._child.wait()
            raise SimulationUnavailable(
                f"The simulation's process ended with {_ending(code)}.{self._last_words()}"
            )

    def _last_words(self) -> str:
        self._errors.seek(0)
        text = self._errors.read().decode(errors="replace").strip()
        return f" Last output:\n{text[-_TAIL:]}" if text else ""

    def _read(self) -> None:
        stream = self._child.stdout
        assert stream is not None
        for line in stream:
            message = json.loads(line)
            with self._changed:
                if "progress" in message:
                    share = (len(self._answers) + message["progress"]) / self._expected
                    self.progress = (share, message["text"])
                else:
                    self._answers.append(message)
                self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()

    def _write(self, lines: list[bytes]) -> None:
        stream = self._child.stdin
        assert stream is not None
        with contextlib.suppress(OSError, ValueError):
            for line in lines:
                stream.write(line)
            stream.flush()  # and stay open: the end of input means that the parent is gone

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait()

    def _finish(self) -> None:
        self._kill()
        self._reader.join(timeout=5)
        self._writer.join(timeout=5)
        for stream in (self._child.stdin, self._child.stdout, self._errors):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


def encode(request: dict[str, Any]) -> bytes:
    """One line for the child: values by pickle, functions that need it by cloudpickle.

    Raises:
        SimulationUnavailable: the function can be neither imported there nor sent.
    """
    function = request.get("function")
    try:
        if function is None or _importable(function):
            data = pickle.dumps(request)
        else:
            data = _cloudpickled(request)
    except SimulationUnavailable:
        raise
    except Exception as error:
        name = getattr(function, "__qualname__", "the request")
        raise SimulationUnavailable(
            f"{name} cannot be sent to the simulation's process: {error}. Build model, optimizer "
            "and data inside the function."
        ) from error
    return base64.b64encode(data) + b"\n"


def _importable(function: Any) -> bool:
    """Whether the child finds the function by module and name."""
    name = getattr(function, "__module__", None)
    home = sys.modules.get(name or "")
    return name != "__main__" and getattr(home, getattr(function, "__name__", ""), None) is function


def _cloudpickled(request: dict[str, Any]) -> bytes:
    try:
        cloudpickle: Any = importlib.import_module("cloudpickle")  # only notebooks' functions
    except ImportError:
        raise SimulationUnavailable(
            "A function defined in a notebook or script needs cloudpickle to reach the "
            f"simulation's process: {pip_install('cloudpickle')}. Or put it into a module."
        ) from None
    return bytes(cloudpickle.dumps(request))


def _environment() -> dict[str, str]:
    """The parent's import path, and no GPU: a fake cuda device aborts the whole process."""
    hidden = {"CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    return {**os.environ, **hidden, "PYTHONPATH": import_path(), "TOKENIZERS_PARALLELISM": "false"}


def _ending(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"code {code}"
