"""A run's attempts: each start of the launcher, in one directory, with one unbroken curve."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.launching.log import guarded, log
from workbench.observe.work_clock import recent_attempts
from workbench.store.cut_lines import cut_after
from workbench.store.files import (
    append_line,
    parse_line,
    read_json,
    read_tail,
    write_bytes_atomic,
)
from workbench.store.layout import RunPaths
from workbench.store.schema import BY_HAND, RollbackDoc
from workbench.store.secrets import hide_bytes, redact_arguments
from workbench.store.starts import is_by_hand, read_attempts

if TYPE_CHECKING:
    from workbench.recover.checkpoints import Checkpoint

ON_END = "on-end"
"""In control/: the last hook of the present attempt was started."""
_CONTROL = ("stop-at", "terminating", "dump", "steer", ON_END)
_WISHES = ("stop", "stop-now", "preempt")
_END_BYTES = 4096
_UNSEEN = "Its end was not seen: every process was gone."


class Attempts:
    """Reads and writes ``attempts.jsonl``, and clears the way for the next attempt."""

    def __init__(self, paths: RunPaths) -> None:
        self._paths = paths
        self._unwritten: list[bytes] = []
        self._watching = False
        self._asked_clock: tuple[float, float] | None = None  # `asked_at`, and its monotonic time
        self.lines = read_attempts(paths)
        self._ended = read_json(paths.exit) or {}  # gone by the time that the next one begins
        self._least = _attempts_elsewhere(paths)
        self._summary, self._summary_lines = recent_attempts(self.lines), len(self.lines)

    @property
    def number(self) -> int:
        """The present attempt, counted from 1; 0 before the first.

        Never less than what other files tell: a damaged attempts.jsonl must not begin again.
        """
        return max([self._least, *(line["attempt"] for line in self.lines)])

    @property
    def first_step(self) -> int:
        """Optimizer steps that were done when the present attempt began."""
        starts = [line for line in self.lines if line["event"] == "start"]
        return int(starts[-1].get("first_step", 0)) if starts else 0

    @property
    def seconds_before(self) -> float:
        """What the earlier attempts took together."""
        begun: dict[int, float] = {}
        total = 0.0
        for line in self.lines:
            if line["event"] == "start":
                begun[line["attempt"]] = line["time"]
            elif line["attempt"] in begun:
                total += max(0.0, line["time"] - begun.pop(line["attempt"]))
        return total

    @property
    def asked_at(self) -> float:
        """Unix seconds at which a person or program last started the run; restarts do not count."""
        starts = [line for line in self.lines if line["event"] == "start"]
        by_hand = [line["time"] for line in starts if is_by_hand(line)]
        return by_hand[-1] if by_hand else starts[0]["time"] if starts else time.time()

    @property
    def resumed_at(self) -> float:
        """Unix seconds of the latest resume by hand; 0 where there was none.

        Before a first start nothing was logged: a clock that is set back must hide no value.
        """
        starts = [line for line in self.lines if line["event"] == "start"]
        by_hand = [line["time"] for line in starts if line["attempt"] > 1 and is_by_hand(line)]
        return by_hand[-1] if by_hand else 0.0

    @property
    def seconds_since_asked(self) -> float:
        """Since `asked_at`, by the monotonic clock once it was read."""
        asked_at = self.asked_at
        if self._asked_clock is None or self._asked_clock[0] != asked_at:
            self._asked_clock = asked_at, time.monotonic() - max(0.0, time.time() - asked_at)
        return time.monotonic() - self._asked_clock[1]

    @property
    def seconds_of_present(self) -> float:
        """Since the present attempt was started; 0 where none is under way."""
        last = self.lines[-1] if self.lines else None
        return max(0.0, time.time() - last["time"]) if last and last["event"] == "start" else 0.0

    def summary(self) -> dict[str, Any]:
        """What the view has of them: see `workbench.observe.work_clock.recent_attempts`."""
        if self._summary_lines != len(self.lines):
            self._summary, self._summary_lines = recent_attempts(self.lines), len(self.lines)
        return self._summary

    def take_over(self) -> None:
        """Before the next attempt is waited for: what was asked of an earlier supervisor is done.

        What is asked from now on stands.
        """
        if self.number and not self._watching:
            self._watching = True
            for name in _WISHES:
                (self._paths.control / name).unlink(missing_ok=True)

    def begin(
        self,
        *,
        first_step: int,
        checkpoint: str | None,
        why: str | None,
        arguments: Sequence[str] | None = None,
        rollback: RollbackDoc | None = None,
        unset: Sequence[Sequence[str]] = (),
    ) -> None:
        """Note the start of an attempt; before any but the first, clear what the last one left.

        What was asked of an earlier supervisor is done with. What is asked of this one while it
        starts again stands: the new attempt stops at once.
        """
        if self.number or why is not None:  # no one gives a reason for a run's first attempt
            resumed = self.number or str(why).startswith(BY_HAND)  # else it comes out of the queue
            old = (*_CONTROL, *_WISHES) if resumed and not self._watching else _CONTROL
            self._end_the_last()
            self._clear(first_step, old)
        beyond = _every_checkpoint(self._paths) if self.number else []
        self._watching = True
        self._least = self.number + 1
        self._write(
            {
                "attempt": self._least,
                "event": "start",
                "time": round(time.time(), 3),
                "first_step": first_step,
                "checkpoint": checkpoint,
                "why": why,
                "arguments": None if arguments is None else redact_arguments(arguments),
                **({} if rollback is None else {"rollback": rollback}),
                **({"unset": [list(pair) for pair in unset]} if unset else {}),
                "given_up": [
                    [str(later.path), later.saved_at]
                    for later in beyond
                    if later.step is not None and later.step > first_step
                ],
            }
        )

    def begun_later(self) -> str | None:
        """Correct the present attempt's first step where its script knew better; then a sentence.

        Such a script loads its latest checkpoint without being told. Whatever it saved up to then
        is in use again.
        """
        line = self.lines[-1] if self.number > 1 and self.lines else {}
        starts = map(read_json, self._paths.metrics.glob("rank-*.start.json"))
        steps = [(start or {}).get("attempt_first_step") for start in starts] if line else []
        step = max((step for step in steps if type(step) is int), default=0)
        if line.get("event") != "start" or step <= self.first_step:
            return None
        every = _every_checkpoint(self._paths)
        steps_by_checkpoint = {(str(saved.path), saved.saved_at): saved.step for saved in every}
        line["first_step"] = step
        line["given_up"] = [
            pair
            for pair in line.get("given_up", ())
            if (steps_by_checkpoint.get(tuple(pair)) or 0) > step
        ]
        self._summary_lines = -1
        guarded("attempts.jsonl", lambda: self._replace(line))
        sentence = f"The script loaded a checkpoint of its own, of step {step}."
        log(sentence)
        return sentence

    def _replace(self, line: Mapping[str, Any]) -> None:
        """Rewrite the start of the present attempt; all other lines stay as they are."""
        self._write_all()
        lines = self._paths.attempts.read_bytes().splitlines(keepends=True)
        for at in reversed(range(len(lines))):
            entry = parse_line(lines[at])[0] or {}
            if (entry.get("attempt"), entry.get("event")) == (line["attempt"], "start"):
                lines[at] = json.dumps(line).encode() + b"\n"
                write_bytes_atomic(self._paths.attempts, b"".join(lines))
                return

    def end(self, *, last_step: int, message: str | None, at: float | None = None) -> None:
        """Note how the present attempt ended; once."""
        self._watching = True
        if self.lines and self.lines[-1]["event"] == "start":
            self._write(
                {
                    "attempt": self.number,
                    "event": "end",
                    "time": round(time.time() if at is None else at, 3),
                    "last_step": last_step,
                    "message": message,
                }
            )

    def _end_the_last(self) -> None:
        """Note the end of an attempt that has none: as exit.json tells it, where its line tore."""
        ended, at = self._ended, self._ended.get("ended_at")
        self._ended = {}
        self.end(
            last_step=furthest(self._paths),
            message=ended.get("message") or _UNSEEN,
            at=float(at) if isinstance(at, int | float) else _heartbeat(self._paths),
        )

    def _clear(self, first_step: int, control: Sequence[str]) -> None:
        """Put away what the last attempt left: its ranks' records, and steps that happen again."""
        paths, number = self._paths, self.number
        for name in control:
            (paths.control / name).unlink(missing_ok=True)
        for path in paths.control.glob("exit-code-*"):  # process numbers come round again
            path.unlink(missing_ok=True)
        for path in sorted(paths.metrics.iterdir()):
            parts = path.name.split(".")
            if "lost" in parts:
                continue
            if parts[-1] == "jsonl":
                lost = path.with_name(f"{parts[0]}.{'.'.join([*parts[1:-1], 'lost'])}.{number}")
                guarded(path.name, lambda path=path, lost=lost: cut_after(path, first_step, lost))
            elif parts[-1] in {"json", "pulse"}:
                guarded(
                    path.name,
                    lambda path=path: path.replace(path.with_name(f"{path.name}.{number}")),
                )
        for path in paths.logs.glob("*.log"):
            if path != paths.supervisor_log:
                guarded(path.name, lambda path=path: _separate(path, number + 1, first_step))

    def _write(self, line: dict[str, Any]) -> None:
        self.lines.append(line)
        self._unwritten.append(hide_bytes(json.dumps(line).encode()))
        guarded("attempts.jsonl", self._write_all)
        log(f"attempt {line['attempt']} {line['event']}: {json.dumps(line)}")

    def _write_all(self) -> None:
        """A line that a full disk refused comes with the next one, before it."""
        while self._unwritten:
            append_line(self._paths.attempts, self._unwritten[0])
            self._unwritten.pop(0)


def furthest(paths: RunPaths) -> int:
    """The step of the furthest rank, from the ends of the metric files alone.

    Each file's last line counts: a script may have gone back to an earlier step.
    """
    steps = [0]
    for path in paths.metrics.glob("rank-*.jsonl"):
        if path.name.count(".") > 1:  # what else a rank writes
            continue
        for line in reversed(read_tail(path, _END_BYTES).splitlines()):
            step = (parse_line(line.encode(errors="replace"))[0] or {}).get("step")
            if type(step) is int:
                steps.append(step)
                break
    return max(steps)


def _attempts_elsewhere(paths: RunPaths) -> int:
    """How many attempts state.json and the records put away of earlier ones report."""
    number = (read_json(paths.state) or {}).get("attempt")
    suffixes = [path.suffix[1:] for path in paths.metrics.glob("rank-0.start.json.*")]
    numbers = [int(number) + 1 for number in suffixes if number.isdecimal()]
    return max([number if type(number) is int else 0, *numbers])


def _heartbeat(paths: RunPaths) -> float | None:
    """When the supervisor was last alive."""
    beat = (read_json(paths.state) or {}).get("heartbeat")
    return float(beat) if isinstance(beat, int | float) else None


def _every_checkpoint(paths: RunPaths) -> list[Checkpoint]:
    """Loads what a first attempt does without: its launcher is started the sooner."""
    from workbench.recover.script_checkpoints import every_checkpoint  # noqa: PLC0415

    return every_checkpoint(paths)


def _separate(path: Path, number: int, first_step: int) -> None:
    from workbench.diagnose.failure import attempt_mark  # noqa: PLC0415  (not of the first)

    with path.open("ab") as file:
        file.write(f"\n{attempt_mark(number, first_step)}\n".encode())
