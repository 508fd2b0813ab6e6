"""Asks a warm server for processes; starts, finds and ends warm servers."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypedDict

from workbench.errors import HostError, WorkbenchError
from workbench.launching.capture import SITE_FOLDER
from workbench.launching.warm import room, sameness
from workbench.launching.warm.child import Order, inherited_signals
from workbench.launching.warm.messages import GO, is_ours, receive, send
from workbench.store import processes
from workbench.store.detached import is_locked, lock_file
from workbench.store.files import read_tail

FOLDER = "WORKBENCH_WARM_DIR"
MODULES = (
    *("torch", "torch.distributed", "torch.distributed.run", "accelerate", "torch._dynamo"),
    *("torch.distributed.checkpoint", "torch.distributed.algorithms.ddp_comm_hooks.default_hooks"),
)
IDLE_SECONDS = 900.0
_HERE = Path(__file__).parent
_APPEARS_SECONDS = 30.0  # until a server that is just being started listens
_READY_SECONDS = 120.0  # until it has imported its modules, on a busy machine
_BECOMES_SECONDS = 600.0  # once it is ready nothing else may be started in its place
_LAST_BYTES = 4000  # of a server's log, in which its last line is looked for
_RUN_VARIABLES = (processes.DIRECTORY, "WORKBENCH_RANK_PID", "WORKBENCH_CAPTURE", processes.MARKER)


class NotWarmError(WorkbenchError):
    """A process cannot be had warm; the message is the reason."""


_LONGEST = 107 - len("/0123456789abcdef.sock")
"""Bytes of the folder's name: Linux takes 107 for a socket's whole path."""


def socket_folder() -> Path:
    """Where this user's warm servers listen: no one else may enter it.

    Raises:
        HostError: somebody else owns it, or its name is too long for a socket.
    """
    configured = os.environ.get(FOLDER)
    places = (os.environ.get("XDG_RUNTIME_DIR"), tempfile.gettempdir(), "/tmp")  # noqa: S108
    usual = [Path(place, f"workbench-warm-{os.getuid()}") for place in places if place]
    paths = [Path(configured)] if configured else usual
    path = next((path for path in paths if len(os.fsencode(path)) <= _LONGEST), None)
    if path is None:
        raise HostError(
            f"The name of {paths[0]} is too long for a socket in it. Set {FOLDER} to a folder "
            f"with a name of at most {_LONGEST} bytes."
        )
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700, parents=True)
    status = path.lstat()
    if status.st_uid != os.getuid() or status.st_mode & 0o077 or path.is_symlink():
        raise HostError(
            f"{path} is not a folder that you alone can enter, so a warm server there is not "
            f"trusted. Remove it, or set {FOLDER} to a folder with mode 700."
        )
    return path


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerKind:
    """Which warm server fits: forks of another one would not be what a cold start is."""

    environment: tuple[tuple[str, str], ...]
    """The variables that are read while Python and its libraries start."""
    modules: tuple[str, ...] = MODULES
    """What it imports, in this order."""

    @property
    def address(self) -> Path:
        """Where it listens."""
        return socket_folder() / f"{self.key}.sock"

    @property
    def key(self) -> str:
        """Its name in `socket_folder`."""
        facts = [sys.executable, sys.prefix, self.environment, self.modules]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


class _WarmSettings(TypedDict):
    threads: int | str | None  # CPU threads of a rank; null = as torch has them
    modules: list[str]  # imported beside the usual ones


class WarmSpec(_WarmSettings, total=False):
    """Which warm server a launch is forked from."""

    server: str  # where the one listens that was started for it; absent = where the settings say


def server_kind(
    environment: Mapping[str, str], threads: int | str | None, modules: Sequence[str] = ()
) -> ServerKind:
    """The server for ranks with `threads` CPU threads under `environment`.

    `modules`: more than the usual ones.
    """
    settings = sameness.settings(environment)
    if threads is not None:
        settings[sameness.THREADS] = str(threads)
    path = _without_hook(environment.get("PYTHONPATH", ""))
    if "deepspeed" in modules and environment.get("ACCELERATE_USE_CPU") == "true":
        settings.setdefault(sameness.DEEPSPEED_DEVICE, "cpu")  # as the ranks themselves set it
    settings |= {"PYTHONPATH": path} if path else {}
    if not path:
        settings.pop("PYTHONPATH", None)
    return ServerKind(environment=tuple(sorted(settings.items())), modules=(*MODULES, *modules))


def _without_hook(path: str) -> str:
    parts = [part for part in path.split(os.pathsep) if part and part != str(SITE_FOLDER)]
    return os.pathsep.join(parts)


def start_server(kind: ServerKind, idle_seconds: float = IDLE_SECONDS) -> None:
    """Start it unless it runs; returns at once. Who asks it before it is ready waits.

    Raises:
        HostError: the folder of the sockets belongs to somebody else.
    """
    place = socket_folder()
    lock = lock_file(place / f"{kind.key}.lock")
    if lock is None:  # it runs, or is being started
        return
    try:
        _spawn(place, kind, idle_seconds, lock)  # which holds the lock as long as it lives
    finally:
        os.close(lock)


def _spawn(place: Path, kind: ServerKind, idle_seconds: float, lock: int) -> None:
    settings = dict(kind.environment)
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in _RUN_VARIABLES and not sameness.is_startup(name)
    }
    quiet = str(_HERE / "quiet")
    path = os.pathsep.join(filter(None, [quiet, settings.get("PYTHONPATH")]))
    environment |= {**settings, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
    environment[room.VARIABLE] = room.FILLING
    with (place / f"{kind.key}.log").open("ab") as log:
        process = subprocess.Popen(
            [
                *(sys.executable, "-u", str(_HERE / "start.py"), str(place), kind.key),
                *(str(idle_seconds), ",".join(kind.modules), str(lock), room.ARGUMENT),
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd="/",
            pass_fds=(lock,),
            start_new_session=True,
        )
    # It outlives us or not: no zombie if it does not, no warning if it does.
    threading.Thread(target=process.wait, daemon=True).start()


def connect(path: Path) -> socket.socket:
    """Connection to the server at `path`, awaited while it starts. Raises NotWarmError: none."""
    deadline = time.monotonic() + _APPEARS_SECONDS
    while True:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(str(path))
        except OSError:
            connection.close()
            if not is_locked(path.with_suffix(".lock")):
                raise NotWarmError(_why_none(path.with_suffix(".log"))) from None
            if time.monotonic() >= deadline:  # one that lives may not listen yet
                raise NotWarmError(
                    f"no warm server for these settings answered within {_APPEARS_SECONDS:g} s"
                ) from None
            time.sleep(0.02)
            continue
        if not is_ours(connection):
            connection.close()
            raise NotWarmError(f"{path} is another user's")
        return connection


def _why_none(log: Path) -> str:
    """Why no server runs, with the last line of the `log` that one would have left."""
    if not log.exists():
        return "no warm server for these settings was started"
    *_, last = ["", *filter(None, map(str.strip, read_tail(log, _LAST_BYTES).splitlines()))]
    detail = f" (the last line of {log}: {last})" if last else ""
    return f"no warm server for these settings runs{detail}"


class WarmProcess:
    """A process that a warm server has forked; the parts of `subprocess.Popen` that we use."""

    def __init__(self, connection: socket.socket, pid: int, reaper: int) -> None:
        self._connection = connection
        self.pid = pid
        self.reaper = reaper
        """Parent of the process, and of the orphans it leaves; ends after `close`."""
        self.returncode: int | None = None
        self.lost = False
        """Its reaper was killed: its exit code is unknown."""
        self._identity = processes.identify(pid)

    def poll(self) -> int | None:
        """Its exit code; None while it runs, and when it was lost."""
        if self.returncode is None and not self.lost:
            self._connection.settimeout(0.0)
            with contextlib.suppress(BlockingIOError):
                self._read()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, once it has ended.

        Raises:
            TimeoutExpired: it has not, within `timeout` seconds.
            NotWarmError: it was lost.
        """
        if self.returncode is None and not self.lost:
            self._connection.settimeout(timeout)
            try:
                self._read()
            except TimeoutError:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0) from None
        if self.returncode is None:
            raise NotWarmError(f"process {self.pid} was lost: its reaper is gone")
        return self.returncode

    def _read(self) -> None:
        try:
            self.returncode = receive(self._connection)[0]["exit_code"]
        except (EOFError, ConnectionError):
            self.lost = True

    @property
    def is_alive(self) -> bool:
        """Whether it lives, also when it was lost."""
        return processes.is_alive(self._identity)

    def send_signal(self, number: int) -> None:
        """Send a signal to that very process, if it lives."""
        if self.returncode is None and self._identity is not None:
            processes.send_signal(self._identity, number)

    def kill(self) -> None:
        """Send it SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def close(self) -> None:
        """Let its reaper go: nothing of it is watched any more."""
        self._connection.close()


def start_process(
    address: Path,
    argv: Sequence[str],
    *,
    folder: str,
    environment: Mapping[str, str],
    output: int,
) -> WarmProcess:
    """Have the server at `address` start `argv`; its output goes to the descriptor `output`.

    Raises:
        NotWarmError: there is no such server, or it would not be the same as a cold start.
    """
    mask = os.umask(0o022)
    os.umask(mask)
    ignored, blocked = inherited_signals()
    order = Order(
        argv=tuple(argv),
        folder=folder,
        environment=dict(environment),
        umask=mask,
        new_session=True,
        ignored=ignored,
        blocked=blocked,
        surroundings=sameness.surroundings(),
    )
    connection = connect(address)
    nowhere = os.open(os.devnull, os.O_RDONLY)
    try:
        connection.settimeout(_READY_SECONDS)
        marker = environment.get(processes.MARKER, "")
        markers = {processes.REAPER_MARKER: marker} if marker else {}
        if marker and processes.DIRECTORY in environment:
            markers[processes.DIRECTORY] = environment[processes.DIRECTORY]
        request = {"do": "start", "order": asdict(order), "reaper_environment": markers}
        send(connection, request, [nowhere, output, output])
        reply, _ = receive(connection)
        if "ready" in reply:
            connection.settimeout(_BECOMES_SECONDS)
            connection.sendall(GO)
            reply, _ = receive(connection)
    except (OSError, EOFError) as error:
        connection.close()
        raise NotWarmError(f"the warm server did not answer ({error or 'it ended'})") from None
    finally:
        os.close(nowhere)
    if "refused" in reply:
        connection.close()
        raise NotWarmError(reply["refused"])
    return WarmProcess(connection, reply["pid"], reply["reaper"])


def servers() -> list[dict[str, Any]]:
    """What each of this user's warm servers says of itself."""
    return [
        reply for path in sorted(socket_folder().glob("*.sock")) if (reply := ask(path, "status"))
    ]


def stop_servers() -> list[dict[str, Any]]:
    """End all of this user's warm servers; their runs go on."""
    return [
        reply for path in sorted(socket_folder().glob("*.sock")) if (reply := ask(path, "stop"))
    ]


def ask(path: Path, action: str) -> dict[str, Any] | None:
    """What the server at `path` says of itself, asked for its "status" or to "stop"; None: gone."""
    try:
        with connect(path) as connection:
            connection.settimeout(_READY_SECONDS)
            send(connection, {"do": action})
            return receive(connection)[0]
    except (NotWarmError, OSError, EOFError):
        return None
