"""The `Run` handle: everything a client does, from the directory alone."""

from __future__ import annotations

import inspect
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

from workbench.describe.job import Job
from workbench.diagnose.offline import diagnose, unsupervised
from workbench.errors import UsageError, WorkbenchError
from workbench.launching.prepare.acceptance import accept
from workbench.launching.prepare.options import keywords
from workbench.launching.resume.branch import fork, rerun
from workbench.launching.resume.resumable import why_not_resumable
from workbench.launching.resume.resume import ResumedRun, resume
from workbench.launching.start.supervisor_process import spawn_supervisor
from workbench.launching.steering import Answer, ask, look, set_values
from workbench.launching.supervise import direct_stop
from workbench.launching.supervise.reattach import may_adopt
from workbench.observe.current_view import current_view
from workbench.observe.events import iterate_metrics, metric_bytes
from workbench.observe.log_tails import log_text
from workbench.observe.logged_rows import iterate_keys
from workbench.observe.rank_count import rank_count
from workbench.observe.series import Series, read_series
from workbench.observe.summary import summarise
from workbench.observe.text_samples import read_samples
from workbench.recover.checkpoints import Checkpoint, verify
from workbench.recover.script_checkpoints import every_checkpoint
from workbench.store.files import read_json, read_texts
from workbench.store.findings import Finding, read_findings
from workbench.store.layout import RunPaths
from workbench.store.ownership import foreign_reason
from workbench.store.processes import is_alive
from workbench.store.record import read_run
from workbench.store.run_record import RunRecord
from workbench.store.status import Status, read_status

_ADOPT_SECONDS = 5.0
_LAST_WORDS_SECONDS = 10.0
_CONFIG_BYTES = 1 << 20
_QUICK_METRIC_BYTES = 32 << 20  # are read in about a second


class Run:
    """A run, seen through its directory. Any number of handles may exist, in any process."""

    def __init__(self, paths: RunPaths, begun: ResumedRun | None = None) -> None:
        self._paths = paths
        self.notes = begun.notes if begun else ()
        """After `resume`, `rerun` and `fork`: what someone should know of how the run continues."""
        self.differs = begun.differs if begun else ()
        """After `rerun` and `fork`: ``{"what", "was", "now"}`` for what has changed since."""

    @property
    def id(self) -> str:
        """The run id, unique in its store."""
        return self._paths.directory.name

    @property
    def directory(self) -> Path:
        """The run directory."""
        return self._paths.directory

    @property
    def document(self) -> dict[str, Any]:
        """run.json: what was asked, how and where."""
        return read_json(self._paths.run) or {}

    @property
    def job(self) -> Job | None:
        """What was trained, how and where; None where the record lacks it: see `why_no_job`."""
        return None if self.why_no_job() else Job.recorded(self.document)

    def why_no_job(self) -> str:
        """Why `job` is None; "" = it is known."""
        try:
            Job.recorded(self.document)
        except UsageError as error:
            return str(error)
        return ""

    @property
    def status(self) -> Status:
        """State, outcome and message, checked against the living processes."""
        return read_status(self._paths)

    @property
    def state(self) -> str:
        """queued, starting, running, stopping, unsupervised, ended, interrupted or unreadable."""
        return self.status.state

    @property
    def outcome(self) -> str | None:
        """succeeded, failed, stopped, preempted, interrupted or no-steps; None while it runs."""
        return self.status.outcome

    @property
    def command(self) -> list[str]:
        """The exact argv that was started (secrets redacted)."""
        return list((read_run(self._paths) or RunRecord()).command)

    def view(self) -> dict[str, Any]:
        """The charts' snapshot; what is not known (yet) is None, columns are empty.

        Keys: see `workbench.store.schema.ViewDoc`. Where no supervisor writes it any more, steps,
        loss_last and elapsed_seconds are the ranks' own; the curves stand still.
        """
        return current_view(self._paths)

    def summary(self) -> dict[str, Any]:
        """What ``workbench show --json`` prints.

        `findings` is None where no one watched and the run is too long to work them out at once:
        `findings()` does.
        """
        summary, findings = summarise(self._paths), read_findings(self._paths)
        if summary["outcome"] is None:
            lost = unsupervised(self._paths)
            findings = [*([lost] if lost else []), *(findings or [])]
        elif findings is None and metric_bytes(self._paths, self._ranks()) <= _QUICK_METRIC_BYTES:
            # It ended unwatched: `diagnose` works it out, and all others say the same.
            findings = self.findings()
        answers = None if findings is None else [each.answer(self.directory) for each in findings]
        return {**summary, "findings": answers, "read_only": self.read_only}

    def metrics(self, rank: int | None = None, *, keys: Sequence[str] = ()) -> list[dict[str, Any]]:
        """One row per optimizer step: of `rank`, or averaged over all ranks.

        Keys: step, rank, time (Unix s), loss, lr, grad_norm, step_seconds; unknown is None.
        `keys`: patterns of the columns wanted instead, what the script logged included: "eval/*".

        Raises:
            UsageError: the run has no such rank.
            UnknownNameError: nothing has such a name.
        """
        return list(self.iterate_metrics(rank, keys=keys))

    def series(self, *keys: str) -> dict[str, Series]:
        """What the script logged by name, each as a curve of bounded length; `keys`: patterns.

        Last, lowest and highest value are exact. `metrics(keys=…)` has every value.
        """
        return {series.name: series for series in read_series(self._paths, keys)}

    def iterate_metrics(
        self, rank: int | None = None, tail: int | None = None, *, keys: Sequence[str] = ()
    ) -> Iterator[dict[str, Any]]:
        """The rows of `metrics` one after another, in bounded memory however long the run.

        `tail`: the last rows alone, from the ends of the files.

        Raises:
            UsageError: the run has no such rank.
        """
        rank = self._checked_rank(rank)
        if keys:
            rows = iterate_keys(self._paths, self._ranks(), keys, rank)
            return rows if tail is None else iter(deque(rows, maxlen=tail))
        return iterate_metrics(self._paths, self._ranks(), rank, tail)

    def samples(self) -> list[dict[str, Any]]:
        """What the model answered to fixed prompts: rows of step, prompt and answer.

        Of more than 200 steps every second one, and so on; the first and the last always.
        """
        return read_samples(self._paths, range(self._ranks()))

    def logs(self, rank: int | None = None, tail: int | None = None) -> str:
        """Output of `rank`, or of the launcher and all ranks, each under a heading.

        `tail` keeps the last lines only, with progress bars collapsed. Bytes that are not UTF-8
        are shown as replacement characters.

        Raises:
            UsageError: the run has no such rank.
        """
        rank = self._checked_rank(rank)
        if rank is not None:
            return log_text(self._paths.rank_log(rank), tail)
        parts = {"launcher": self._paths.launcher_log}
        parts |= {f"rank {number}": self._paths.rank_log(number) for number in range(self._ranks())}
        texts = {name: log_text(path, tail) for name, path in parts.items()}
        return "\n".join(f"== {name} ==\n{text}" for name, text in texts.items() if text)

    @property
    def read_only(self) -> str | None:
        """Why this user may only read the run; None = it is their own."""
        return foreign_reason(self._paths)

    def request_stop(self, *, now: bool = False, why: str = "") -> None:
        """Ask for a stop and return at once. `now` skips the graceful rung.

        `why`: a sentence for the run's message.

        A run that no one watches is stopped by a thread of this process.

        Raises:
            ForeignRunError: it is another user's, or others can write to it.
            StoreError: the run directory cannot be written.
        """
        direct_stop.request_stop(self._paths, now=now, why=why)

    @property
    def config_files(self) -> dict[str, str]:
        """Path -> text of the launcher's config files; a link among them is left out."""
        return read_texts(self._paths.config, _CONFIG_BYTES)

    def preempt(self) -> None:
        """Hand on that this machine goes away soon: checkpoint and end within the grace period.

        Raises:
            ForeignRunError: it is another user's, or others can write to it.
            StoreError: the run directory cannot be written.
        """
        direct_stop.request_preemption(self._paths)

    def stop(
        self, *, now: bool = False, timeout: float | None = None, on_message: direct_stop.Say = None
    ) -> dict[str, Any]:
        """Stop and wait until no process is left: ``{"run", "outcome", "processes_left"}``.

        A run that no one watches is stopped by this process. `timeout`: in seconds; None = as long
        as the checkpoint takes. `on_message` hears what the stop waits for.

        Raises:
            ForeignRunError: it is another user's, or others can write to it.
            WorkbenchError: it did not end within `timeout` seconds.
        """
        left = direct_stop.stop(self._paths, now=now, timeout=timeout, on_message=on_message)
        return {"run": self.id, "outcome": self.outcome, "processes_left": left}

    def set(self, *, hold: bool = False, **values: Any) -> Answer:
        """Change ``lr=`` or other numbers of the optimizer, on all ranks after one step.

        The schedule continues, scaled to the new rate; `hold` keeps it constant. Restarts and
        resumes keep it. `at`, `wait`, `timeout`, `by` as of `launching.steering.ask`, which raises.
        """
        how = {name: values.pop(name) for name in ("at", "wait", "timeout", "by") if name in values}
        return set_values(self._paths, values, hold=hold, **how)

    def look(self, module: str = "", kinds: Sequence[str] = (), **how: Any) -> Answer:
        """Statistics of weights, gradients and activations of a module in one step, per rank.

        `module`: a name or pattern, "" = name all. `how` as of `launching.steering.ask`.
        """
        return look(self._paths, module, kinds, **how)

    def ask(self, action: str, **how: Any) -> Answer:
        """Have it "checkpoint" or "evaluate" now, and train on: see `launching.steering.ask`."""
        return ask(self._paths, action, **how)

    def checkpoints(self, *, check: bool = False) -> list[Checkpoint]:
        """What this run could be resumed from, newest first; what its script wrote too.

        By sizes alone, in milliseconds; `check` reads every byte against the kept hashes.
        """
        listed = every_checkpoint(self._paths)
        return [replace(saved, problem=verify(saved)) for saved in listed] if check else listed

    def resume(
        self,
        checkpoint: str | None = None,
        *,
        arguments: Sequence[str] | None = None,
        drop: Sequence[str] = (),
        **changes: Any,
    ) -> Run:
        """Go on from the newest whole checkpoint, or from the one named.

        With its layout the run continues in its own directory, as its next attempt: one unbroken
        curve. With another strategy or number of processes it becomes a run of its own. It keeps
        all options that are not given.

        Args:
            checkpoint: A checkpoint's name, as `checkpoints` lists them, a path, or "none" for the
                beginning; None = the newest whole, or the beginning where there is none.
            arguments: The script's, in place of those of their names; ``{checkpoint}`` in them
                becomes the checkpoint's folder.
            drop: Options or words to leave out of the script's arguments; "*" for all of them.
            changes: Keywords of `wb.launch`, each instead of what the run had: job, strategy,
                processes, options, recovery (a `Recovery`, or some of its fields), environment …

        Raises:
            UsageError: it still runs, it has no whole checkpoint, or no one knows how the script
                resumes; the message says what would work.
        """
        return _begun(resume(self._paths, checkpoint, arguments=arguments, drop=drop, **changes))

    def rerun(self, *, devices: Sequence[str] = ()) -> Run:
        """Start the same again, as a run of its own; its `differs` says what is another now.

        Script, arguments, options, folder and the variables that tuned the training are those of
        the record, `devices` instead of its own. Commit, packages, data and host are those
        of now.

        Raises:
            UsageError: it cannot be started so any more; the message says why.
        """
        return _begun(rerun(self._paths, devices))

    def fork(
        self,
        at: int | None = None,
        *,
        arguments: Sequence[str] = (),
        drop: Sequence[str] = (),
        **changes: Any,
    ) -> Run:
        """Start a run of its own from the checkpoint of step `at`; None = the newest.

        `arguments`, `drop` and `changes` are those of `resume`; this run stays as it is.

        Raises:
            UsageError: there is no such checkpoint, or it cannot be started so.
        """
        return _begun(fork(self._paths, at, arguments=arguments, drop=drop, **changes))

    def why_not_resumable(self) -> str:
        """Why `resume` without arguments would be refused; "" = it works."""
        return why_not_resumable(self._paths)

    def findings(self) -> list[Finding]:
        """What went wrong and why, worst first; of runs that no one watched too."""
        return diagnose(self._paths)

    def wait(self, timeout: float | None = None, *, steps: int | None = None) -> str | None:
        """Block until the run has ended, or has made `steps` steps; returns its outcome so far.

        The supervisor is given 10 s for its last messages. Ctrl-C ends the waiting only.

        Raises:
            WorkbenchError: it did not end within `timeout` seconds.
        """
        deadline = inf if timeout is None else time.monotonic() + timeout
        while (status := self.status).live:
            if steps is not None and self._steps_now() >= steps:
                return None
            if time.monotonic() > deadline:
                raise WorkbenchError(f"{self.id} is still {status.state} after {timeout:g} s.")
            time.sleep(0.1)
        self._wait_for_supervisor(min(deadline, time.monotonic() + _LAST_WORDS_SECONDS))
        return self.outcome

    def _wait_for_supervisor(self, deadline: float) -> None:
        """Until then it may still write to the directory."""
        supervisor = (read_json(self._paths.state) or {}).get("supervisor")
        while is_alive(supervisor) and time.monotonic() < deadline:
            time.sleep(0.02)

    def _steps_now(self) -> int:
        """Of the present attempt's view; the view of the one before may still lie there."""
        view, state = self.view(), read_json(self._paths.state) or {}
        return view["steps"] if view.get("attempt") == state.get("attempt") else 0

    def adopt(self) -> bool:
        """Give a run that trains on unwatched here a new supervisor; False when it needs none.

        From now on it can be resumed, also if its record is from elsewhere.

        Raises:
            ForeignRunError: it is another user's, or others can write to it.
        """
        accept(self._paths)
        if self.status.state != "unsupervised" or not may_adopt(self._paths):
            return False
        spawn_supervisor(self._paths, None)
        deadline = time.monotonic() + _ADOPT_SECONDS
        while self.status.state == "unsupervised" and time.monotonic() < deadline:
            time.sleep(0.05)
        return True

    def _ranks(self) -> int:
        return rank_count(self._paths, (read_run(self._paths) or RunRecord()).processes)

    def _checked_rank(self, rank: int | None) -> int | None:
        if rank is not None and rank not in range(self._ranks()):
            raise UsageError(f"{self.id} has ranks 0 to {self._ranks() - 1}, not {rank!r}.")
        return None if rank is None else int(rank)  # of NumPy, too

    def __repr__(self) -> str:
        status = self.status
        return f"Run({self.id!r}, {status.outcome or status.state}, {self._paths.directory})"


for _method in (Run.resume, Run.fork):
    _own = list(inspect.signature(_method).parameters.values())[:-1]
    _method.__dict__["__signature__"] = inspect.Signature(
        [*_own, *keywords(changes=True)], return_annotation="Run"
    )


def _begun(again: ResumedRun) -> Run:
    return Run(again.paths, again)
