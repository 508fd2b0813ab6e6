"""The warm server: imports, does nothing else, and forks what it is asked for.

Started by `client.start_server` as ``start.py FOLDER KEY IDLE_SECONDS MODULES LOCK ROOM``, with
the environment that its forks will have as far as it is read at a start. It is loaded under a
private name, so that nothing of `workbench` is in the forks' ``sys.modules``.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from . import room, sameness, scarcity
from .child import Order, become, run, search_path
from .ending import Ending
from .messages import is_ours, receive, send
from .reaper import fork_and_reap
from .template import branch_off, fork_instead_of_exec

_REQUEST_SECONDS = 5.0
LOOK_SECONDS = 10.0
"""Between looks at the host's memory, and least time unused before it leaves for it."""


class Server:
    """One listening process. `serve` returns in its forks alone."""

    def __init__(
        self, folder: str, key: str, idle_seconds: float, modules: Sequence[str], lock: int
    ) -> None:
        self._path = os.path.join(folder, f"{key}.sock")
        self._idle_seconds = idle_seconds
        self._modules = modules
        self._environment = dict(os.environ)  # as it was at the start
        self._lock = lock
        self._reapers = set[int]()
        self._started = 0
        self._cpu_seconds = 0.0  # of all that it forked and that has ended
        space = room.find()
        if space is None:
            raise SystemExit("The warm server was started without room for its forks' environment.")
        self.room = space
        os.environ.pop(room.VARIABLE)
        self._environment.pop(room.VARIABLE)
        quiet = os.path.join(os.path.dirname(os.path.abspath(__file__)), "quiet")
        python_path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        self.base = [path for path in sys.path[1:] if path not in {*python_path, quiet}]
        self._loaded: dict[str, tuple[int, int]] = {}
        self._read: frozenset[str] = frozenset()
        self.set_by_imports: dict[str, str] = {}

    def listen(self) -> None:
        """Take the address, before the imports: who asks meanwhile waits.

        No one else can have it: the process that started this one locked a file for it.
        """
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(self._path)
        self._socket.listen(64)

    def load(self) -> None:
        """Import what the forks will find imported."""
        sys.path[:] = search_path_of_server(self.base)
        sameness.Reads.begin()
        for name in self._modules:
            importlib.import_module(name)
        # A device of DeepSpeed's has a server of its own, and ranks on CPU set it themselves.
        self._read = sameness.Reads.end() - {sameness.DEEPSPEED_DEVICE}
        self.set_by_imports = sameness.added(os.environ, self._environment)
        self._loaded = sameness.files_of_modules()
        self._surroundings = sameness.surroundings()
        gc.collect()
        gc.freeze()  # the collector touches no page that the forks share
        self._show_title()

    def _show_title(self) -> None:
        threads = self._environment.get(sameness.THREADS, "not set")
        self.room.show({}, f"workbench warm server ({sameness.THREADS}={threads})")

    def serve(self) -> tuple[Order, list[int]] | None:
        """Answer until no one has asked for long, or memory is short and none of its runs lives.

        Returns:
            None where it has left; in a fork, what that is to become.
        """
        wake, written = os.pipe()
        os.set_blocking(written, False)
        signal.set_wakeup_fd(written)
        signal.signal(signal.SIGCHLD, _wake_up)
        stops = list[int]()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, _frame: stops.append(number))
        used = time.monotonic()
        while not stops:
            unused = time.monotonic() - used
            if not self._reapers and self._is_to_leave(unused):
                break
            pause = max(min(self._idle_seconds - unused, LOOK_SECONDS), 1.0)
            ready, _, _ = select.select([self._socket, wake], [], [], pause)
            if wake in ready:
                os.read(wake, 512)
                self._collect()
            if self._socket in ready:
                used = time.monotonic()
                connection, _ = self._socket.accept()
                fork = self._answer(connection, stops)
                if fork is not None:
                    return fork
        self._close()
        return None

    def _is_to_leave(self, unused: float) -> bool:
        return unused >= self._idle_seconds or (unused >= LOOK_SECONDS and scarcity.is_scarce())

    def _collect(self) -> None:
        """Let no reaper that has ended stay as a zombie."""
        for reaper in list(self._reapers):
            ended, _, usage = os.wait4(reaper, os.WNOHANG)
            if ended:
                self._reapers.discard(reaper)
                self._cpu_seconds += usage.ru_utime + usage.ru_stime

    def _close(self) -> None:
        signal.set_wakeup_fd(-1)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)
        os.close(self._lock)  # from now on another one may be started
        self._socket.close()

    def _answer(
        self, connection: socket.socket, stops: list[int]
    ) -> tuple[Order, list[int]] | None:
        files: list[int] = []
        try:
            if not is_ours(connection):
                return None
            connection.settimeout(_REQUEST_SECONDS)
            request, files = receive(connection, 3)
            connection.settimeout(None)
            if request["do"] == "start":
                markers: dict[str, str] = request["reaper_environment"]
                return self._start(connection, Order(**request["order"]), files, stops, markers)
            if request["do"] == "stop":
                stops.append(0)
            send(connection, self._status())
        except (OSError, EOFError):  # it has gone
            return None
        except (ValueError, KeyError, TypeError):  # it said nonsense, or we have a defect
            traceback.print_exc()
            return None
        finally:
            for descriptor in files:
                with contextlib.suppress(OSError):
                    os.close(descriptor)
            connection.close()
        return None

    def _start(
        self,
        connection: socket.socket,
        order: Order,
        files: list[int],
        stops: list[int],
        markers: dict[str, str],
    ) -> tuple[Order, list[int]] | None:
        changed = sameness.changed_file(self._loaded)
        if changed is not None:
            stops.append(0)
        why = (
            changed
            or sameness.threads_left()
            or sameness.cuda_in_use(sys.modules)
            or sameness.other_surroundings(order.surroundings, self._surroundings)
            or self.why_not(order, first=True)
        )
        if why is not None:
            send(connection, {"refused": why})
            return None
        self._started += 1
        reaper = os.fork()
        if reaper:
            self._reapers.add(reaper)
            return None
        try:
            self._socket.close()
            copies = [os.dup(descriptor) for descriptor in files]
            fork_and_reap(connection, self.room, markers)
        except BaseException:  # noqa: BLE001  (a fork must not go on as a second server)
            traceback.print_exc()
            os._exit(1)
        return order, copies

    def why_not(self, order: Order, *, first: bool = False) -> str | None:
        """Why a fork would not be what a cold start of `order` is; None when it would be.

        `first`: a launcher does no arithmetic, so its number of threads does not matter.
        """
        target = order.program
        if target is None:
            return f"{order.argv[:3]} is not a script or module of {sys.executable}"
        if not os.path.isdir(order.folder):
            return f"there is no folder {order.folder}"
        script = os.path.join(order.folder, target.name)
        if target.kind == "script" and not (script.endswith(".py") and os.path.isfile(script)):
            return f"{target.name} is not a Python file"
        ignored = {sameness.THREADS} if first and target.launches_ranks else set[str]()
        folders = [path for path in search_path(order, self.base) if path not in self.base]
        modules = {name: module for name, module in sys.modules.items() if "." not in name}
        return sameness.other_variable(
            order.environment, self._environment, self._read, ignored=ignored
        ) or sameness.shadowed(folders, modules)

    def _status(self) -> dict[str, Any]:
        return {
            "pid": os.getpid(),
            "python": sys.executable,
            "modules": list(self._modules),
            "threads": self._environment.get(sameness.THREADS),
            "started": self._started,
            "running": len(self._reapers),
            "cpu_seconds": round(self._cpu_seconds, 3),
            "idle_seconds": self._idle_seconds,
            "memory_bytes": _resident_bytes(),
            "read": sorted(self._read),
        }


def _wake_up(_number: int, _frame: object) -> None:
    """A handler is what makes Python write to the wake-up descriptor."""


def search_path_of_server(base: Sequence[str]) -> list[str]:
    """Where the server looks for its libraries: PYTHONPATH and what Python adds, no script."""
    python_path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return [*dict.fromkeys([*(path for path in python_path if path), *base])]


def _resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    """Serve; in a fork, become what was ordered."""
    ending = Ending()
    folder, key, idle_seconds, modules, lock = sys.argv[1:6]  # and room after them
    server = Server(folder, key, float(idle_seconds), modules.split(","), int(lock))
    server.listen()
    server.load()
    ending.libraries_are_loaded()
    ordered = server.serve()
    if ordered is None:
        return
    order, files = ordered
    keep_open = set[int]()
    if order.program is not None and order.program.launches_ranks:
        if order.new_session:  # before the template branches off: ranks share it
            os.setsid()
        template, rank = branch_off(server.room)
        if rank is None:
            order = replace(order, new_session=False)
            fork_instead_of_exec(template, server.why_not)
            keep_open = {template.fileno()}
        else:
            order, files = rank
            # `become` would leave the object with a number that is soon another file's, and the
            # end of this function would close that file: gloo dies of it.
            template.close()
    if not keep_open:  # a launcher imports none of it but what its own code does
        order = replace(order, environment={**server.set_by_imports, **order.environment})
    become(order, files, server.room, server.base, keep=keep_open)
    run(order, ending)
