"""Starts real ranks of a script under the capture hook, without launcher and supervisor.

They are forks of the session's warm server; `cold` ones are interpreters of their own.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.conftest import SCRIPTS
from workbench.launching.capture import SITE_FOLDER
from workbench.launching.prepare import accelerate_config
from workbench.launching.prepare.targets import worth_preloading
from workbench.launching.warm import client
from workbench.store import processes

# torch with gloo aborts in its own shut-down in about one run of eighty, after the training's end,
# where our hook does not let gloo's threads rest (see capture/leaving.py).
_ABORTED_AT_EXIT = "terminate called without an active exception"


def printed(done: subprocess.CompletedProcess[str]) -> str:
    """What a launcher without our hook printed. It must have succeeded, but for torch's abort at
    exit: everything is written by then, and whether it is shows in what the caller reads.
    """
    aborted = _ABORTED_AT_EXIT in done.stderr and re.search(r"exitcode\s*: -6 ", done.stderr)
    assert done.returncode == 0 or aborted, done.stdout[-4000:] + done.stderr[-6000:]
    return done.stdout


def start_cold(
    argv: list[str], folder: Path, environment: dict[str, str]
) -> subprocess.Popen[bytes]:
    """An interpreter of its own."""
    return subprocess.Popen(argv, cwd=folder, stdin=subprocess.DEVNULL, env=environment)


def start_warm(argv: list[str], folder: Path, environment: dict[str, str]) -> client.WarmProcess:
    """A fork of the session's warm server, which has what the script `argv[1]` imports."""
    threads = environment["OMP_NUM_THREADS"]
    kind = client.server_kind(environment, threads, worth_preloading(Path(argv[1])))
    client.start_server(kind)
    output = sys.__stdout__.fileno() if sys.__stdout__ else 1
    return client.start_process(
        kind.address, argv, folder=str(folder), environment=environment, output=output
    )


def run_warm(
    argv: list[str],
    folder: Path,
    environment: dict[str, str],
    modules: Sequence[str] = (),
    seconds: float = 240.0,
) -> subprocess.CompletedProcess[str]:
    """`subprocess.run` of this Python on a script or launcher, forked from the session's server.

    It has one output; it is given as stdout and as stderr. `modules`: see `client.server_kind`.
    """
    kind = client.server_kind(environment, environment["OMP_NUM_THREADS"], modules)
    client.start_server(kind)
    with tempfile.TemporaryFile() as output:
        process = client.start_process(
            kind.address,
            argv,
            folder=str(folder),
            environment=environment,
            output=output.fileno(),
        )
        try:
            code = process.wait(seconds)
        finally:
            for left in processes.descendants(process.reaper):
                processes.send_signal(left, signal.SIGKILL)
            process.close()
        output.seek(0)
        text = output.read().decode(errors="replace")
    return subprocess.CompletedProcess(argv, code, text, text)


def output(*arguments: object, folder: Path | None = None, modules: Sequence[str] = ()) -> str:
    """What Python prints with these arguments on CPU, forked as by `run_warm`; it must succeed."""
    own = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    environment = {**os.environ, **accelerate_config.environment("cpu"), **own}
    argv = [sys.executable, *map(str, arguments)]
    return printed(run_warm(argv, folder or Path.cwd(), environment, modules))


def torchrun(processes: int, *arguments: object, **more: Any) -> str:
    """What these ranks print; see `output`."""
    start = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}")
    return output(*start, *arguments, **more)


def end_processes(started: Sequence[subprocess.Popen[bytes] | client.WarmProcess]) -> None:
    """Kill what still runs."""
    for process in started:
        if process.poll() is None:
            process.kill()
            process.wait()
        if isinstance(process, client.WarmProcess):
            process.close()


class Ranks:
    """The processes of one script, and what the hook wrote for them under `folder`."""

    def __init__(
        self,
        folder: Path,
        script: str,
        *arguments: str,
        ranks: int = 1,
        cold: bool = False,
        **more: str,
    ):
        for name in ("logs", "metrics", "control", "checkpoints"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.folder = folder
        self.processes = [
            (start_cold if cold else start_warm)(
                [sys.executable, str(SCRIPTS / script), *arguments],
                folder,
                {
                    **{k: v for k, v in os.environ.items() if k != "WORKBENCH_RANK_PID"},
                    "PYTHONPATH": str(SITE_FOLDER),
                    "WORKBENCH_RUN_DIR": str(folder),
                    "WORKBENCH_CAPTURE_DEBUG": "1",
                    "OMP_NUM_THREADS": "1",
                    "ACCELERATE_USE_CPU": "true",
                    "RANK": str(rank),
                    "LOCAL_RANK": str(rank),
                    "WORLD_SIZE": str(ranks),
                    "LOCAL_WORLD_SIZE": str(ranks),
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": str(port),
                    **more,
                },
            )
            for rank in range(ranks)
        ]

    def wait(self, seconds: float = 240.0) -> list[int]:
        """Exit codes, when all have ended."""
        try:
            return [process.wait(seconds) for process in self.processes]
        finally:
            self.end()

    def end(self) -> None:
        """Kill what still runs."""
        end_processes(self.processes)

    def lines(self, rank: int = 0) -> list[dict[str, Any]]:
        path = self.folder / "metrics" / f"rank-{rank}.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def document(self, name: str, rank: int = 0) -> dict[str, Any]:
        return json.loads((self.folder / "metrics" / f"rank-{rank}.{name}.json").read_text())

    def log(self, rank: int = 0) -> str:
        return (self.folder / "logs" / f"rank-{rank}.log").read_text(errors="replace")
