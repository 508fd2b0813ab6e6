"""Whether node 0 of a run over several machines can be reached: one knocks, the other listens."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

_KNOCK_SECONDS = 1.0
_PATIENCE_SECONDS = 3.0


class ReachabilityWatch:
    """Knocks at an address once a second, in a thread; an answer, even a refusal, is one."""

    def __init__(self) -> None:
        self._target: tuple[str, int] | None = None
        self._since: float | None = None
        self._answered: tuple[str, int] | None = None
        self._stop = threading.Event()
        self._lock = threading.Lock()
        threading.Thread(target=self._loop, daemon=True).start()

    def aim(self, address: str, port: int) -> None:
        """Knock there from now on."""
        with self._lock:
            if self._target != (address, port):
                self._target, self._since, self._answered = (address, port), None, None

    @property
    def unreachable_since(self) -> float | None:
        """Unix seconds of the first knock in a row that no one answered; None = answered."""
        return self._since

    @property
    def open(self) -> bool:
        """Whether someone has listened there since it was aimed at."""
        return self._answered is not None and self._answered == self._target

    def end(self) -> None:
        """Knock no more."""
        self._stop.set()

    def _loop(self) -> None:
        while not self._stop.wait(_KNOCK_SECONDS):
            target = self._target
            if target is not None:
                self._note(target, *_knock(target))

    def _note(self, target: tuple[str, int], answered: bool, listening: bool) -> None:  # noqa: FBT001
        with self._lock:
            if target != self._target:
                return
            if listening:
                self._answered = target
            if answered:
                self._since = None
            elif self._since is None:
                self._since = round(time.time(), 3)


def _knock(target: tuple[str, int]) -> tuple[bool, bool]:
    """Whether the machine answers, and whether someone listens."""
    try:
        with socket.create_connection(target, _PATIENCE_SECONDS):
            return True, True
    except ConnectionRefusedError:
        return True, False
    except OSError:
        return False, False


class Beacon:
    """Listens at the rendezvous port until the launcher does, so that nodes can try the way."""

    def __init__(self) -> None:
        self._listener: socket.socket | None = None

    def light(self, address: str, ports: list[int]) -> int:
        """Listen at the first of `ports` that is free, else at any; returns it.

        Raises:
            OSError: there is no free port.
        """
        self.put_out()
        for port in [*ports, 0]:
            listener = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                self._bind(listener, address, port)
            except OSError:
                listener.close()
                continue
            listener.listen(64)
            listener.settimeout(0)
            self._listener = listener
            return int(listener.getsockname()[1])
        raise OSError(f"no port is free for the rendezvous at {address}")

    @staticmethod
    def _bind(listener: socket.socket, address: str, port: int) -> None:
        try:
            listener.bind((address, port))
        except OSError:  # an address that a router or a cloud translates is not one of our own
            if not _is_own(address):
                listener.bind(("", port))
            else:
                raise

    def tend(self) -> None:
        """Let those go who knocked."""
        while self._listener is not None:
            try:
                visitor, _ = self._listener.accept()
            except OSError:
                return
            visitor.close()

    def put_out(self) -> None:
        """Free the port."""
        if self._listener is not None:
            with contextlib.suppress(OSError):
                self.tend()
            self._listener.close()
            self._listener = None


def _is_own(address: str) -> bool:
    """Whether this machine has that address itself."""
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True
