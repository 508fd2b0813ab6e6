"""The detached process that serves a sweep: draws values, files trials, looks at them, ends it.

    python -P -m workbench.sweeping.controller STORE SWEEP

It may be killed at any point, with everything else: values are in Optuna's journal before a run is
made of them, a run's record says whose trial it is, and a result is told once. The next controller
goes on: values without a run are filed, a run without processes is resumed, a result that was not
told is told, a pruned trial that still runs is stopped.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from workbench.errors import ForeignRunError, StoreError, WorkbenchError
from workbench.store import processes
from workbench.store.detached import lock_file, outlive_terminal
from workbench.store.files import read_json, write_json_atomic
from workbench.store.process_log import log
from workbench.sweeping.files import SweepFiles
from workbench.sweeping.host import Host, RunNow
from workbench.sweeping.plan import SweepPlan
from workbench.sweeping.study import Trial, Trials

_LOOK_SECONDS = 1.0
_MOST_RESUMES = 3  # without a step gained, by one controller
_FIRST_FAILURES = 3
_NOT_NOW = ("is held by", "The GPU driver")
_AGAIN = {"interrupted", "preempted"}


class Controller:
    """Takes a sweep's turns; all its state is in the trials and their runs.

    `at` is called with the name of each step as it is done: where a test kills it.
    """

    def __init__(
        self,
        plan: SweepPlan,
        trials: Trials,
        host: Host,
        *,
        stop_asked: Callable[[], bool] = lambda: False,
        at: Callable[[str], None] = lambda _step: None,
    ) -> None:
        self._plan, self._trials, self._host = plan, trials, host
        self._stop_asked, self._at = stop_asked, at
        self._fresh = True
        self._stopping = set[int]()  # trials that were already asked to stop when it began
        self._before: frozenset[int] = frozenset()
        self._resumes: dict[int, tuple[int, int]] = {}  # trial -> first step, resumes from there

    def failed(self) -> list[int]:
        """The trials that have failed so far."""
        return [trial.number for trial in self._trials.every() if trial.state == "failed"]

    def forgive(self, trials: Iterable[int]) -> None:
        """Its user had the sweep continue after these had failed: they do not end it again."""
        self._before = frozenset(trials)

    def turn(self) -> tuple[str, str] | None:
        """Do what is due; outcome and message once the sweep has ended."""
        stopping = self._stop_asked()
        trials = self._trials.every()
        for trial in trials:
            if trial.state == "open" and not stopping:
                self._follow(trial)
        self._fresh = False
        trials = self._trials.every()
        why = "The sweep was stopped." if stopping else self._hopeless(trials)
        live = self._stop_those(trials, why)
        if why:
            return None if live else ("stopped" if stopping else "failed", why)
        left = self._fill(live)
        return None if left else self._finished()

    def _stop_those(self, trials: list[Trial], why: str) -> int:
        """Stop pruned trials, and all where the sweep ends; how many runs are at work."""
        live = 0
        for trial in trials:
            if not self._host.exists(trial.number):
                continue
            now = self._host.now(trial.number)
            live += now.live
            if now.live and (why or trial.state != "open"):
                self._stop(trial, why)
        return live

    def _stop(self, trial: Trial, why: str) -> None:
        try:
            self._host.stop(trial.number, trial.why or why)
        except WorkbenchError as error:  # the others are stopped all the same
            log(f"trial {trial.number} is not stopped: {error}")
        self._at("stopped")

    def _fill(self, live: int) -> bool:
        """File trials while there is room; False when nothing is left to do."""
        opened = [trial.number for trial in self._trials.every() if trial.state == "open"]
        if not all(map(self._host.exists, opened)):
            return True  # one that could not be filed comes first
        room = self._host.room()
        while live < room:
            trial = self._trials.ask()
            self._at("asked")
            if trial is None:
                return live > 0 or any(trial.state == "open" for trial in self._trials.every())
            self._file(trial)
            live += 1
        return True

    def _file(self, trial: Trial) -> None:
        try:
            self._host.file(trial.number, trial.values)
        except WorkbenchError as error:
            if not _goes_by(error):
                self._fail(trial, str(error))
            else:
                log(f"trial {trial.number} is not filed now: {error}")
        else:
            log(f"trial {trial.number} is filed: {trial.values}")
        self._at("filed")

    def _follow(self, trial: Trial) -> None:
        """An open trial: it has no run yet, it is at work, or it has ended."""
        if not self._host.exists(trial.number):
            self._file(trial)
            return
        now = self._host.now(trial.number)
        if now.state == "unsupervised":
            self._go_on(trial, now)
        elif now.state == "starting" and self._fresh:  # perhaps its filing was cut off
            self._file(trial)
        elif now.live:
            if self._fresh and now.stop_asked:
                self._stopping.add(trial.number)
            self._look(trial)
        elif now.outcome in _AGAIN or (now.outcome == "stopped" and self._is_ours(trial)):
            self._stopping.discard(trial.number)
            self._go_on(trial, now)
        elif now.outcome == "succeeded":
            self._tell(trial)
        else:
            self._fail(trial, now.message or f"Its run ended as {now.outcome}.")

    def _is_ours(self, trial: Trial) -> bool:
        """Whether the stop that ended its run was asked of an earlier controller."""
        return self._fresh or trial.number in self._stopping

    def _go_on(self, trial: Trial, now: RunNow) -> None:
        first, resumes = self._resumes.get(trial.number, (0, 0))
        if now.first_step > first:  # it got further: neither its user's stops nor those count
            first, resumes = now.first_step, 0
        if resumes >= _MOST_RESUMES and now.state != "unsupervised":
            self._fail(trial, f"It was resumed {resumes} times from step {first}. {now.message}")
            return
        log(f"trial {trial.number} continues: {now.message}")
        try:
            self._host.resume(trial.number)
        except WorkbenchError as error:
            if now.state == "unsupervised" or _goes_by(error):
                log(f"not now: {error}")
            else:
                self._fail(trial, f"It cannot go on: {error}")
        else:
            self._resumes[trial.number] = first, resumes + 1
        self._at("resumed")

    def _look(self, trial: Trial) -> None:
        if self._plan.first_look is None:
            return
        so_far = self._host.measured(trial.number)
        for step in self._plan.looks(so_far.last_step):
            value = so_far.at(step)
            if step in trial.looks or value is None:
                continue
            behind = self._trials.look(trial.number, step, value)
            self._at("looked")
            if behind:
                self._prune(trial, step, value)
                return

    def _prune(self, trial: Trial, step: int, value: float) -> None:
        why = (
            f"Pruned by the sweep {self._plan.name}: {self._plan.metric} {value:.4g} at step "
            f"{step} is not among the best third."
        )
        log(f"trial {trial.number}: {why}")
        self._trials.end(trial.number, "pruned", why)
        self._at("pruned")

    def _tell(self, trial: Trial) -> None:
        measured = self._host.measured(trial.number)
        value = measured.at()
        if value is None:
            there = ", ".join(measured.logged) or "nothing by name"
            self._fail(trial, f"It recorded no {self._plan.metric}. It logged: {there}.")
        elif not math.isfinite(value):
            self._fail(trial, f"Its {self._plan.metric} was NaN or infinite at the end.")
        else:
            log(f"trial {trial.number}: {self._plan.metric} {value:.6g}")
            self._trials.finish(trial.number, value)
        self._at("told")

    def _fail(self, trial: Trial, why: str) -> None:
        log(f"trial {trial.number} failed: {why}")
        self._trials.end(trial.number, "failed", why)
        self._at("failed")

    def _hopeless(self, trials: list[Trial]) -> str:
        """Why a sweep is ended early; "" = it is not."""
        if any(trial.state == "finished" for trial in trials):
            return ""
        ended = [
            trial for trial in trials if trial.state != "open" and trial.number not in self._before
        ]
        first = ended[:_FIRST_FAILURES]
        missing = next((trial for trial in first if "It recorded no" in trial.why), None)
        if missing is not None:
            return f"Trial {missing.number}: {missing.why}"
        if len(first) < _FIRST_FAILURES or any(trial.state != "failed" for trial in first):
            return ""
        return f"The first {_FIRST_FAILURES} trials failed. The latest: {first[-1].why}"

    def _finished(self) -> tuple[str, str]:
        counts: dict[str, int] = {}
        for trial in self._trials.every():
            counts[trial.state] = counts.get(trial.state, 0) + 1
        return "finished", ", ".join(f"{number} {state}" for state, number in counts.items())


def _goes_by(error: WorkbenchError) -> bool:
    """Whether what refuses a start may be gone later: a full disk, held devices, a silent driver.

    No trial fails of it: the next turn asks again.
    """
    if isinstance(error, StoreError):
        return not isinstance(error, ForeignRunError)
    return any(word in str(error) for word in _NOT_NOW)


def serve(
    files: SweepFiles, make: Callable[[], Controller], pause: Callable[[], None]
) -> str | None:
    """Be the controller of a sweep until it has ended; how it ended, None where there is one."""
    lock = lock_file(files.lock)
    if lock is None:
        return None
    try:
        myself = processes.identify(os.getpid())
        controller, ended = make(), None
        if files.end.exists():  # kept before the end goes: a kill in between forgets neither
            write_json_atomic(files.forgiven, {"trials": controller.failed()})
            files.end.unlink(missing_ok=True)
        forgiven = files.forgiven_trials()
        controller.forgive(controller.failed() if forgiven is None else forgiven)
        while True:
            try:
                if read_json(files.controller) != myself:  # one that came second wrote its own
                    write_json_atomic(files.controller, myself)
                ended = ended or controller.turn()
                if ended is not None:
                    files.tell_end(*ended, at=time.time())
                    break
            except (WorkbenchError, OSError) as error:  # a full disk: the next turn does it
                log(f"not now: {error}")
            pause()
        log(f"{ended[0]}: {ended[1]}")
        files.stop.unlink(missing_ok=True)
        return ended[0]
    finally:
        files.controller.unlink(missing_ok=True)
        os.close(lock)


def main() -> None:
    """Entry point of the detached process."""
    outlive_terminal()
    files = SweepFiles(Path(sys.argv[1]), sys.argv[2])
    files.check_own()

    def make() -> Controller:
        plan = files.plan()
        trials = Trials(files.journal, plan, writes=True)
        host = Host(files, plan)
        os.chdir(host.folder)
        return Controller(plan, trials, host, stop_asked=files.stop.exists)

    try:
        serve(files, make, lambda: time.sleep(_LOOK_SECONDS))
    except Exception as error:
        is_expected = isinstance(error, WorkbenchError)
        files.tell_end("failed", str(error) if is_expected else repr(error), time.time())
        raise  # into the log


if __name__ == "__main__":
    main()
