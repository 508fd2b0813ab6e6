"""Rows 8 and 9: a real kernel is interrupted, restarted and killed, a real server is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("jupyter_client")
from jupyter_client.manager import KernelManager

import workbench as wb
from tests.conftest import until
from tests.faults.lab import LAB
from tests.faults.matrix import record
from workbench.store import processes

pytestmark = [pytest.mark.slow, pytest.mark.full]


def launching(store: Path) -> str:
    return (
        "import workbench as wb; "
        f"run = wb.launch({str(LAB)!r}, ['--steps', '100000', '--step-ms', '20'], cpu=True, "
        f"processes=2, store={str(store)!r})"
    )


def goes_on(run: wb.Run, more: int = 20) -> None:
    before = run.view()["steps"]
    until(lambda: run.view()["steps"] > before + more, 30, "training to go on")
    assert run.status.state == "running"


def test_the_run_outlives_its_kernel(store: Path) -> None:
    manager = KernelManager()
    manager.start_kernel()
    client = manager.client()
    client.start_channels()
    client.wait_for_ready(timeout=240)
    client.execute_interactive(launching(store), timeout=240, output_hook=lambda _: None)
    run = wb.attach("last", store)
    until(lambda: run.view()["steps"] > 10, 90, "the first steps")
    client.execute("import time; time.sleep(600)")
    manager.interrupt_kernel()
    goes_on(run)
    manager.restart_kernel(now=True)
    client.wait_for_ready(timeout=240)
    began = time.monotonic()
    code = f"import workbench as wb; print(wb.attach('last', {str(store)!r}).state)"
    said: list[str] = []
    client.execute_interactive(
        code, timeout=240, output_hook=lambda message: said.append(str(message["content"]))
    )
    seconds = time.monotonic() - began
    assert any("running" in text for text in said)
    goes_on(run)
    client.stop_channels()
    manager.shutdown_kernel(now=True)
    goes_on(run)
    assert [row["step"] for row in run.metrics(0)] == list(range(1, len(run.metrics(0)) + 1))
    run.stop(now=True)
    record(
        8,
        f"interrupt, restart, kill: no step lost; the new kernel saw it running after {seconds:.1f} s",
    )


def test_the_run_outlives_its_server(store: Path, tmp_path: Path) -> None:
    """The whole session of the server is killed, kernels included."""
    script = tmp_path / "server.py"
    script.write_text(f"{launching(store)}\nimport time\ntime.sleep(600)\n")
    server = subprocess.Popen([sys.executable, str(script)], start_new_session=True)
    until(lambda: wb.Store(store).ids(), 30, "the run")
    run = wb.attach("last", store)
    until(lambda: run.view()["steps"] > 10, 90, "the first steps")
    os.killpg(server.pid, signal.SIGHUP)  # the terminal closes
    os.killpg(server.pid, signal.SIGKILL)
    server.wait()
    goes_on(run)
    assert run.stop(now=True)["processes_left"] == 0
    assert processes.find_marked(run.document["marker"]) == []
    record(
        9,
        "SIGHUP and SIGKILL to the session that launched it: training goes on, stop finds every process",
    )
