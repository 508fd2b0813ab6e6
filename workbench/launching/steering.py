"""Asks a living run for something at a step boundary, and waits for what came of it.

What the ranks do with it: `capture.steering`. The boundary must lie so far ahead that every rank
hears of it before; where one was too late, none acts, and the request is made again, further ahead.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from workbench.describe.checks import require_choice
from workbench.describe.option import several
from workbench.errors import StoreError, UsageError, WorkbenchError
from workbench.launching.capture.steering import ACTIONS, BELL, LATE
from workbench.launching.capture.tensor_looks import KINDS
from workbench.observe.current_view import current_view
from workbench.observe.pulse import read_pulse
from workbench.recover.script_checkpoints import every_checkpoint
from workbench.store.actions import record_action
from workbench.store.commands import command_for
from workbench.store.files import append_line, read_json, write_json_atomic
from workbench.store.layout import RunPaths
from workbench.store.ownership import check_own
from workbench.store.record import read_run
from workbench.store.run_record import RunRecord
from workbench.store.secrets import redact_arguments
from workbench.store.status import read_status

TIMEOUT_SECONDS = 120.0
"""How long an answer is waited for, unless told otherwise."""
_AHEAD_SECONDS = 2.0
_FIRST = 3  # of a run without a step: the boundary
_TRIES = 4
_LOOK_SECONDS = 0.1
_SAVED_SECONDS = 5.0
_MOST_VALUES = 20
_DOES = {"set": "change it", "look": "look", "checkpoint": "save", "evaluate": "evaluate"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came of a request."""

    run: str
    """The run's id."""
    action: str
    """set, look, checkpoint or evaluate."""
    arguments: tuple[str, ...]
    """What was asked, in words: ``lr=0.0001``."""
    at: int
    """The optimizer step after which it is done."""
    done: bool | None
    """Whether it was, on every rank; None = that step still lies ahead."""
    why: str
    """Why it was not done, as a sentence; "" = it was, or will be."""
    ranks: tuple[dict[str, Any], ...] = ()
    """What each rank tells, by rank: changed values, statistics of tensors, where it saved."""

    def document(self) -> dict[str, Any]:
        """Plain JSON form."""
        return {
            "run": self.run,
            "action": self.action,
            "arguments": list(self.arguments),
            "at": self.at,
            "done": self.done,
            "why": self.why,
            "ranks": list(self.ranks),
        }

    @property
    def sentence(self) -> str:
        """All of it but the figures of a look."""
        command = " ".join((self.action, *self.arguments))
        if self.done is None:
            return f"{command}: all ranks know of it and do it after step {self.at:,}."
        if not self.done:
            return f"{command}: nothing was changed. {self.why}"
        changes = "; ".join(
            _change(change) for change in (self.ranks or ({},))[0].get("changes", ())
        )
        path = next((rank["path"] for rank in self.ranks if rank.get("path")), "")
        more = f" {changes}." if changes else f" It lies in {path}." if path else ""
        return f"{command}: done on all ranks after step {self.at:,}.{more}"


def _change(change: Mapping[str, Any]) -> str:
    name, own, value = change["name"], change["own"], change["value"]
    was = "n/a" if own is None else f"{own:g}"
    goes_on = "held there"
    if not change["hold"]:
        goes_on = f"the script's schedule continues, times {change['factor']:g}"
    return f"{name} is {value:g} instead of {was} from step {change['first']:,} on, {goes_on}"


def set_values(
    paths: RunPaths,
    values: Mapping[str, float],
    *,
    hold: bool = False,
    **how: Any,
) -> Answer:
    """Change values of the optimizer's groups on all ranks. See `Run.set`."""
    if not 1 <= len(values) <= _MOST_VALUES:
        raise UsageError(f"Give 1 to {_MOST_VALUES} values to change, as lr=1e-4.")
    numbers: dict[str, float] = {}
    for name, value in values.items():
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = math.nan
        if not math.isfinite(number) or (name == "lr" and number < 0):
            raise UsageError(f"{name}={value}: give a finite number, a rate of 0 or more.")
        numbers[name] = number
    words = [f"{name}={value:g}" for name, value in numbers.items()] + ["--hold"] * hold
    return ask(paths, "set", words, {"values": numbers, "hold": hold}, **how)


def look(paths: RunPaths, module: str = "", kinds: Sequence[str] = (), **how: Any) -> Answer:
    """Statistics of a module's tensors on each rank, or the names of all modules."""
    kinds = several(kinds)
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        raise UsageError(f"{unknown[0]!r} cannot be looked at: choose from {', '.join(KINDS)}.")
    words = [module, *kinds] if module else []
    return ask(paths, "look", words, {"module": module, "kinds": list(kinds or KINDS)}, **how)


def ask(
    paths: RunPaths,
    action: str,
    words: Sequence[str] = (),
    facts: Mapping[str, Any] | None = None,
    *,
    at: int | None = None,
    wait: bool = True,
    timeout: float = TIMEOUT_SECONDS,
    by: str = "python",
) -> Answer:
    """Ask the ranks of a living run for `action` after step `at`; None = as soon as all can know.

    Args:
        paths: The run.
        action: One of `ACTIONS`.
        words: What is asked, as it stands in the journal.
        facts: What else the ranks need to know.
        at: An optimizer step that lies ahead.
        wait: Until it is done, and not only until all ranks know of it.
        timeout: Seconds that are waited at most.
        by: Who asks, for the journal.

    Raises:
        ForeignRunError: it is another user's, or others can write to it.
        UsageError: the run cannot be asked; the message says why.
        StoreError: the run directory cannot be written.
        WorkbenchError: the ranks did not answer in time.
    """
    require_choice("action", action, ACTIONS)
    run = _askable(paths, action, at)
    hidden = redact_arguments(words)
    arguments = [*hidden, *(["--at", str(at)] if at is not None else [])]
    record_action(paths, by=by, action=action, arguments=arguments, limits="")
    for attempt in range(_TRIES):
        boundary = _boundary(paths, run, 3**attempt) if at is None else at
        document = {"action": action, "at": boundary, "ranks": run.processes, "words": hidden}
        name = _request(paths, {**document, "by": by, **(facts or {})})
        answer = Answer(
            run=run.run, action=action, arguments=tuple(hidden), at=boundary, done=None, why=""
        )
        answer = _collected(paths, run, name, answer, wait=wait, timeout=timeout)
        if at is not None or not answer.why.startswith(LATE):
            return _checked(paths, answer) if action == "checkpoint" and answer.done else answer
    raise WorkbenchError(
        f"{run.run} makes its steps faster than its ranks hear of the request, {_TRIES} times. "
        "Name a step far ahead: --at STEP"
    )


def _askable(paths: RunPaths, action: str, at: int | None) -> RunRecord:
    run, status = read_run(paths) or RunRecord(), read_status(paths)
    name = paths.directory.name
    if not status.live or status.state == "queued":
        why = "waits in the queue" if status.live else "has ended"
        raise UsageError(f"{name} {why}. Only a run that trains can be asked for this.")
    check_own(paths, "steered")
    if not run.capture:
        raise UsageError(f"{name} was started with --no-capture: its ranks hear of nothing.")
    if run.nodes > 1:
        raise UsageError(
            f"{name} trains on {run.nodes} machines, whose ranks see a request at different times. "
            f"Runs of one machine can be steered. Stop it, then resume it: "
            f"{command_for(paths.directory, 'stop')}"
        )
    done = _steps(paths, run)
    if at is not None and at <= done:
        raise UsageError(
            f"{name} is past step {at:,}: it has made {done:,} steps. To {_DOES[action]} as soon "
            "as all ranks can, leave --at out."
        )
    return run


def _steps(paths: RunPaths, run: RunRecord) -> int:
    pulses = [read_pulse(paths.rank_pulse(rank)) for rank in range(run.processes)]
    return max((pulse.steps for pulse in pulses if pulse is not None), default=0)


def _boundary(paths: RunPaths, run: RunRecord, patience: int) -> int:
    """The earliest step that all ranks are sure to hear of in time."""
    done, pace = _steps(paths, run), current_view(paths)["step_seconds_median"]
    if not done or not pace:
        return done + _FIRST * patience
    return done + 1 + math.ceil(_AHEAD_SECONDS * patience / pace)


def _request(paths: RunPaths, document: Mapping[str, Any]) -> str:
    name = f"{time.time_ns() // 1000}-{document['action']}"
    folder = paths.steering / name
    try:
        folder.mkdir(parents=True, mode=0o700)
        write_json_atomic(folder / "request.json", document)
        append_line(paths.control / BELL, name.encode())
    except OSError as error:
        raise StoreError(f"{paths.directory} cannot be written: {error.strerror}.") from error
    return name


def _collected(
    paths: RunPaths, run: RunRecord, name: str, answer: Answer, *, wait: bool, timeout: float
) -> Answer:
    """The answer once all ranks have told, or know of it where that is enough."""
    folder, every = paths.steering / name, range(run.processes)
    deadline = time.monotonic() + timeout
    attempt = (read_json(paths.state) or {}).get("attempt")
    while True:
        live = read_status(paths).live
        results = [read_json(folder / f"result-{rank}.json") for rank in every]
        known_results = [result for result in results if result is not None]
        if len(known_results) == run.processes:
            why = next(
                (str(answer.get("why")) for answer in known_results if not answer["done"]), ""
            )
            return replace(answer, done=not why, why=why, ranks=tuple(known_results))
        heard = all((folder / f"heard-{rank}").exists() for rank in every)
        if heard and not wait and not (folder / "decision").exists():
            return answer
        over = not live or (read_json(paths.state) or {}).get("attempt") != attempt
        if over and not known_results:
            ended = "ended" if not live else "was restarted"
            return replace(answer, done=False, why=f"The run {ended} before step {answer.at:,}.")
        if time.monotonic() > deadline:
            raise WorkbenchError(_unanswered(paths, folder, answer, known_results, timeout))
        time.sleep(_LOOK_SECONDS)


def _unanswered(
    paths: RunPaths,
    folder: Any,
    answer: Answer,
    results: Sequence[Mapping[str, Any]],
    timeout: float,
) -> str:
    name = paths.directory.name
    heard = sorted(path.name.removeprefix("heard-") for path in folder.glob("heard-?*"))
    if not heard:
        return (
            f"No rank of {name} has heard of the request after {timeout:g} s: they load, hang, or "
            f"were started by the script itself. See: {command_for(paths.directory, 'diagnose')}"
        )
    return (
        f"After {timeout:g} s ranks {', '.join(heard)} of {name} know of it and {len(results)} are "
        f"done. It is done after step {answer.at:,} by all or by none: "
        f"{command_for(paths.directory, 'show')}"
    )


def _checked(paths: RunPaths, answer: Answer) -> Answer:
    """Whether a checkpoint is really there: a full disk does not end a training."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    run = read_run(paths) or RunRecord()
    while True:
        saved = [
            checkpoint
            for checkpoint in every_checkpoint(paths)
            if checkpoint.step == answer.at and not checkpoint.doubt
        ]
        if saved and not saved[0].problem:
            first = {**answer.ranks[0], "path": str(saved[0].path)}
            return replace(answer, ranks=(first, *answer.ranks[1:]))
        went_on = _steps(paths, run) > answer.at or not read_status(paths).live
        if went_on:
            deadline = min(deadline, time.monotonic() + _SAVED_SECONDS)
        if time.monotonic() > deadline:
            why = (
                f"The script was told to save, and no whole checkpoint of step {answer.at:,} is "
                f"there: {command_for(paths.directory, 'logs')}"
            )
            return replace(answer, done=False, why=why)
        time.sleep(_LOOK_SECONDS)
