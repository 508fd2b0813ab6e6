"""The probes' processes from the parent's side: start, follow, end; never loads torch."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from workbench.describe.child_python import import_path
from workbench.errors import HostError
from workbench.launching.prepare.accelerate_config import environment
from workbench.store.processes import SAFE_PYTHON

_WORKER = "workbench.compare.calibration.probes.worker"
_TAIL = 1500  # characters of a dead process's stderr in the message
PATIENCE = 5.0
"""Times the asked seconds after which a host that does other things is given up …"""
LEAST_PATIENCE = 420.0
"""… but not earlier: a host with ten times more to do than cores takes minutes."""


class ProbeProcesses:
    """One process per rank; its maker calls `end`, after which none of them is left."""

    def __init__(
        self,
        sizes: Sequence[int],
        *,
        device: str,
        cores: int,
        seconds: float,
        folder: Path,
        steps_only: bool = False,
    ) -> None:
        self._deadline = time.monotonic() + max(LEAST_PATIENCE, PATIENCE * seconds)
        self._scratch = tempfile.TemporaryDirectory(prefix="workbench-calibration-")
        scratch = Path(self._scratch.name)
        self._errors = [scratch / f"{rank}.err" for rank in range(max(sizes))]
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._children: list[subprocess.Popen[str]] = []
        plan = {
            "sizes": list(sizes),
            "device": device,
            "cores": cores,
            "seconds": seconds,
            "rendezvous": str(scratch / "rendezvous"),
            "folder": str(folder),
            "steps_only": steps_only,
        }
        try:
            for rank in range(max(sizes)):
                self._start(rank, {**plan, "rank": rank})
        except BaseException:
            self.end()
            raise
        threading.Thread(target=self._read, name="calibration", daemon=True).start()

    def _start(self, rank: int, plan: Mapping[str, Any]) -> None:
        device = str(plan["device"])
        lo = {"GLOO_SOCKET_IFNAME": "lo"}  # one machine: never depend on how its name resolves
        with self._errors[rank].open("wb") as errors:
            child = subprocess.Popen(
                [*SAFE_PYTHON, "-m", _WORKER, json.dumps(plan)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
                stderr=errors,
                text=True,
                start_new_session=True,
                env={**os.environ, **lo, **environment(device), "PYTHONPATH": import_path()},
            )
        self._children.append(child)

    def _read(self) -> None:
        stream = self._children[0].stdout
        assert stream is not None
        with contextlib.suppress(OSError, ValueError):
            for line in stream:
                self._lines.put(line)
        self._lines.put(None)

    def follow(self, on_message: Callable[[Mapping[str, Any]], None]) -> None:
        """Hand on every message of the first process until it is done; an empty one meanwhile.

        Raises:
            HostError: a process died, or the host is too busy to come to an end.
        """
        while True:
            try:
                line = self._lines.get(timeout=0.2)
            except queue.Empty:
                self._check()
                on_message({})
                continue
            if line is None:
                self._check(ended=True)
                return
            message: dict[str, Any] = json.loads(line)
            on_message(message)
            if message.get("done"):
                return

    def _check(self, *, ended: bool = False) -> None:
        codes = [child.poll() for child in self._children]
        bad = [rank for rank, code in enumerate(codes) if code]
        if bad or ended:
            words = "".join(self._last_words(rank) for rank in bad[:1])
            raise HostError(
                f"The calibration's process {bad[0] if bad else 0} ended early.{words} Nothing was "
                "saved; workbench doctor checks whether torch works here."
            )
        if time.monotonic() > self._deadline:
            raise HostError(
                "The calibration did not finish: the host is too busy to measure. Nothing was "
                "saved; try again on an idle host."
            )

    def _last_words(self, rank: int) -> str:
        text = self._errors[rank].read_text(encoding="utf-8", errors="replace").strip()
        return f" Last output:\n{text[-_TAIL:]}\n" if text else ""

    def end(self) -> None:
        """Kill what is left and remove the scratch folder."""
        for child in self._children:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
        for child in self._children:
            child.wait()
            for stream in (child.stdin, child.stdout):
                if stream is not None:
                    with contextlib.suppress(OSError):
                        stream.close()
        self._scratch.cleanup()
