"""Follows one run's files and decides what to send, when, to whom; sending is given from outside.

What was taken in is kept in the run directory with what of it is not sent yet, so that another
process tells the rest, and nothing twice. It is kept before it is sent: a kill loses nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from workbench.notifying.messages import (
    Message,
    about_end,
    about_findings,
    about_restart,
    joined,
    reaches,
)
from workbench.notifying.targets import Target
from workbench.observe.summary import summarise
from workbench.recover.policy import Recovery
from workbench.store.files import read_json, write_json_atomic
from workbench.store.findings import Finding, read_findings
from workbench.store.layout import RunPaths
from workbench.store.record import read_run
from workbench.store.run_record import RunRecord
from workbench.store.starts import is_by_hand, is_by_itself, read_starts

Send = Callable[[Target, Message], str | None]
"""Sends a message; None when it arrived, else why not."""
BETWEEN_SECONDS = 60.0
"""Between two messages to one target; what comes between waits and is joined. Ends go at once."""
AGAIN_SECONDS = 3600.0
"""A finding that comes back within this is not told again."""
KEEP_SECONDS = 600.0
"""Between two writes of when a finding was last seen to stand."""
RETRY_SECONDS = (2.0, 5.0, 15.0, 60.0, 300.0)
"""Waits after failures, the last one again and again."""
GIVE_UP_SECONDS = 600.0
"""After the end of a run: how long a target that does not answer is tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Waiting:
    """A message that is not sent yet."""

    message: Message
    findings: tuple[Finding, ...] = ()  # that it is about

    def document(self) -> dict[str, Any]:
        """Plain JSON form; `read` takes it back."""
        return {
            "message": asdict(self.message),
            "findings": [finding.document() for finding in self.findings],
        }

    @classmethod
    def read(cls, document: Any) -> _Waiting | None:
        """The message that a file holds; None where it is not one, or of another version."""
        try:
            findings = filter(None, map(Finding.read, document["findings"]))
            return cls(message=Message(**document["message"]), findings=tuple(findings))
        except (TypeError, KeyError):
            return None


@dataclass(slots=True, kw_only=True)
class _Outbox:
    """What one target is still to get."""

    target: Target
    waiting: list[_Waiting] = field(default_factory=list[_Waiting])
    due: float = 0.0
    failures: int = 0

    @property
    def unsent(self) -> set[str]:
        """Ids of the findings that wait."""
        return {finding.id for waiting in self.waiting for finding in waiting.findings}


class Follower:
    """The messages of one run. Call `look` about once a second until it returns False."""

    def __init__(
        self, paths: RunPaths, targets: Sequence[Target], send: Send, log: Callable[[str], None]
    ) -> None:
        self._paths, self._send, self._log = paths, send, log
        run = read_run(paths) or RunRecord()
        self._name = run.name or paths.directory.name
        self._file = paths.directory / "notified.json"
        saved = read_json(self._file) or {}
        self._boxes = [_Outbox(target=target) for target in targets]
        unsent: dict[str, Any] = saved.get("unsent") or {}
        for box in self._boxes:
            documents = unsent.get(box.target.name) or ()
            box.waiting = list(filter(None, map(_Waiting.read, documents)))
        self._reported: dict[str, float] = {
            str(key): float(at) for key, at in dict(saved.get("findings") or {}).items()
        }
        self._restarts = int(saved.get("restarts") or 0)  # of the latest attempt that was reported
        self._attempts_size = -1
        self._ended: Any = saved.get("ended_at")
        self._over_since: float | None = None
        self._written_at: float | None = None

    def look(self, now: float, ticks: float | None = None) -> bool:
        """Take in what is new, send what is due; False when nothing more can come.

        `now`: Unix seconds. `ticks`: monotonic seconds, for waits; None = `now`.
        """
        ticks = now if ticks is None else ticks
        end = read_json(self._paths.exit)
        changed = self._take_restarts() | self._take_findings(now)
        if end is not None and end.get("ended_at") != self._ended:
            self._ended = end.get("ended_at")
            outcome = str(end.get("outcome") or "ended")
            summary = summarise(self._paths)
            how = about_end(self._name, self._paths.directory, outcome, summary)
            self._tell(how, first=True)  # a long message is cut at its end
            changed = True
        old = self._written_at is None or ticks - self._written_at >= KEEP_SECONDS
        if changed or (self._reported and old):
            self._written_at = ticks
            self._keep()
        sent = [self._deliver(box, ticks, last=end is not None) for box in self._boxes]
        if any(sent):
            self._keep()
        if end is None:
            self._over_since = None
            return True
        if self._over_since is None:
            self._over_since = ticks
        left = sum(len(box.waiting) for box in self._boxes)
        if left and ticks - self._over_since > GIVE_UP_SECONDS:
            self._log(f"gave up with {left} messages that could not be sent")
            return False
        return bool(left)

    def hand_over(self, why: str) -> None:
        """Send what waits; what cannot be sent is left to the next process that follows the run."""
        for box in self._boxes:
            self._deliver(box, 0.0, last=True)  # also what only waits for its turn
        self._keep()
        left = sum(len(box.waiting) for box in self._boxes)
        self._log(f"{why}; {left} messages are unsent")

    def _take_findings(self, now: float) -> bool:
        listed = read_findings(self._paths) or []
        standing = [finding for finding in listed if finding.cleared_at is None]
        replaced = {
            finding.id: finding for finding in listed if finding.cleared_at and finding.replaced_by
        }
        never = -AGAIN_SECONDS - 1.0
        fresh = [
            finding
            for finding in standing
            if abs(now - self._reported.get(_key(finding), now + never)) > AGAIN_SECONDS
        ]
        for finding in standing:
            self._reported[_key(finding)] = now  # counted from when it was last seen to stand
        for box in self._boxes:
            before = {
                str(finding.replaced_by): finding.kind
                for finding in replaced.values()
                if _key(finding) in self._reported and finding.id not in box.unsent
            }
            self._withdraw(box, replaced)
            matching = [finding for finding in fresh if reaches(finding, box.target.findings)]
            if matching:
                box.waiting.append(self._about(matching, before))
        return bool(fresh)

    def _about(self, findings: Sequence[Finding], before: Mapping[str, str]) -> _Waiting:
        message = about_findings(self._name, self._paths.directory, findings, before)
        return _Waiting(message=message, findings=tuple(findings))

    def _withdraw(self, box: _Outbox, replaced: Mapping[str, Finding]) -> None:
        """A cause that has turned out to be another is not sent any more."""
        for at, waiting in reversed(list(enumerate(box.waiting))):
            gone = [finding for finding in waiting.findings if finding.id in replaced]
            if not gone:
                continue
            for finding in gone:
                self._reported.pop(_key(finding), None)
            left = [finding for finding in waiting.findings if finding not in gone]
            box.waiting[at : at + 1] = [self._about(left, {})] if left else []

    def _take_restarts(self) -> bool:
        """What the run did by itself; what someone asked for needs no message."""
        try:
            size = self._paths.attempts.lstat().st_size
        except OSError:
            return False
        if size == self._attempts_size:
            return False
        self._attempts_size, reported, made = size, self._restarts, 0
        starts = read_starts(self._paths)
        by_hand = [at for at, start in enumerate(starts) if is_by_hand(start)]
        for start in filter(is_by_itself, starts[by_hand[-1] if by_hand else 0 :]):
            back = "rollback" in start
            made += not back
            if start["attempt"] - 1 > reported:
                allowed = Recovery.read((read_run(self._paths) or RunRecord()).recovery).restarts
                run, why = self._paths.directory, str(start.get("why") or "")
                how = about_restart(self._name, run, 0 if back else made, allowed, why)
                self._tell(how)
            self._restarts = max(self._restarts, start["attempt"] - 1)
        return self._restarts > reported

    def _tell(self, message: Message, *, first: bool = False) -> None:
        waiting = _Waiting(message=message)
        for box in self._boxes:
            box.waiting.insert(0 if first else len(box.waiting), waiting)

    def _deliver(self, box: _Outbox, ticks: float, *, last: bool) -> bool:
        """Send what is due; whether it arrived."""
        if not box.waiting or (ticks < box.due and not (last and not box.failures)):
            return False
        why = self._send(box.target, joined([waiting.message for waiting in box.waiting]))
        if why is None:
            self._log(f"{box.target.name}: sent {box.waiting[0].message.title}")
            box.waiting.clear()
            box.failures, box.due = 0, ticks + BETWEEN_SECONDS
            return True
        box.due = ticks + RETRY_SECONDS[min(box.failures, len(RETRY_SECONDS) - 1)]
        box.failures += 1
        self._log(f"{box.target.name}: not sent ({why}); next try in {box.due - ticks:g} s")
        return False

    def _keep(self) -> None:
        document: Mapping[str, Any] = {
            "findings": self._reported,
            "restarts": self._restarts,
            "ended_at": self._ended,
            "unsent": {
                box.target.name: [waiting.document() for waiting in box.waiting]
                for box in self._boxes
                if box.waiting
            },
        }
        try:
            write_json_atomic(self._file, document)
        except OSError as error:
            self._log(f"what was told could not be kept: {error.strerror}")


def _key(finding: Finding) -> str:
    return finding.kind if finding.rank is None else f"{finding.kind} of rank {finding.rank}"
