"""`Mirror`: keeps the copy of a run at an address in step while it trains."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace

from workbench.errors import WorkbenchError
from workbench.recover.checkpoints import list_checkpoints
from workbench.storage.mirror_state import MirrorState, read_mirror, write_mirror
from workbench.storage.push import PushResult
from workbench.store.files import read_json
from workbench.store.layout import RunPaths
from workbench.store.secrets import hide_known

METRICS_SECONDS = 60.0
"""Metrics and logs are sent this often where no checkpoint comes sooner."""
RETRY_SECONDS = (5.0, 15.0, 60.0)
"""Waits after failures, the last one again and again."""
GIVE_UP_SECONDS = 900.0
"""After the end of a run: how long an address that does not answer is tried."""
_WRITE_SECONDS = 10.0
Send = Callable[[Callable[[int, int, str], None]], PushResult]
"""Sends what is new; told how to say that it is still at it. Raises WorkbenchError."""


class Mirror:
    """One run and one address. Call `look` every second or so until it returns False."""

    def __init__(
        self,
        paths: RunPaths,
        url: str,
        send: Send,
        log: Callable[[str], None],
        clock: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        """`clock`: monotonic seconds, for waits. `wall`: Unix seconds, for the state file."""
        self._paths, self._send, self._log = paths, send, log
        self._clock, self._wall = clock, wall
        before = read_mirror(paths)
        same = before is not None and before.url == url
        fresh = MirrorState(url=url)
        self._state = replace(before, final=False) if before is not None and same else fresh
        self._sent: object = None
        self._due, self._failures = clock(), 0
        self._over_since: float | None = None
        self._write()

    def look(self, *, gone: bool = False) -> bool:
        """Send what is new if it is time; False when nothing more is to be done.

        `gone`: the run's processes have ended without an end record.
        """
        now, over = self._clock(), gone or self._paths.exit.exists()
        self._over_since = (self._over_since or now) if over else None
        content = self._content(over=over)
        new = content != self._sent and not self._failures
        if now < self._due and not new:
            self._write_if_due(now)
            return True
        done = self._push(content, final=over)
        if done and over and content == self._content(over=over):
            return False
        if self._over_since is None or now - self._over_since < GIVE_UP_SECONDS:
            return True
        self._log("gave up: the run has ended and the address does not take it")
        return False

    def _content(self, *, over: bool) -> object:
        """Changes with each finished checkpoint and with the end of the run."""
        saved = [
            (str(checkpoint.path), checkpoint.saved_at)
            for checkpoint in list_checkpoints(self._paths)
            if checkpoint.sealed and not checkpoint.problem
        ]
        return saved[:1], over, (read_json(self._paths.exit) or {}).get("ended_at")

    def _push(self, content: object, *, final: bool) -> bool:
        try:
            pushed = self._send(lambda _done, _total, _path: self._write_if_due(self._clock()))
        except (WorkbenchError, OSError) as error:
            self._failed(str(error))
            return False
        self._sent, self._failures = content, 0
        self._due = self._clock() + METRICS_SECONDS
        self._state = replace(
            self._state,
            last_good_at=self._wall(),
            last_step=pushed.step,
            sent_bytes=self._state.sent_bytes + pushed.sent_bytes,
            failing_since=None,
            error=None,
            final=final,
        )
        for note in pushed.notes:
            self._log(note)
        self._log(f"step {pushed.step}: {pushed.sent_bytes:,} bytes in {pushed.seconds:.1f} s")
        self._write()
        return True

    def _failed(self, why: str) -> None:
        now, why = self._clock(), hide_known(why)
        self._due = now + RETRY_SECONDS[min(self._failures, len(RETRY_SECONDS) - 1)]
        self._failures += 1
        since = self._state.failing_since or self._wall()
        self._state = replace(self._state, failing_since=since, error=why)
        self._log(f"not sent ({why}); next try in {self._due - now:g} s")
        self._write()

    def _write_if_due(self, now: float) -> None:
        if now - self._written_at >= _WRITE_SECONDS:
            self._write()

    def _write(self) -> None:
        self._written_at = self._clock()
        self._state = replace(self._state, told_at=self._wall())
        with contextlib.suppress(OSError):  # a full disk: the copy matters more
            write_mirror(self._paths, self._state)
