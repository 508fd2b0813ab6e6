"""What the supervisor sees and writes: metrics, samples, view, and the end of the run."""

from __future__ import annotations

import contextlib
import json
import time
import traceback
from collections.abc import Mapping
from typing import Any

from workbench.diagnose.diagnoser import Diagnoser
from workbench.diagnose.facts import Facts, RankFacts
from workbench.diagnose.frames import with_cells
from workbench.diagnose.instability import Instability, InstabilityWatch
from workbench.launching.capture.writers import LineWriter
from workbench.launching.log import EXIT_RESERVE, failure_logged, guarded, log
from workbench.launching.resume.attempts import furthest
from workbench.launching.supervise.outcome import Verdict, judge
from workbench.launching.supervise.rank_processes import RankProcesses, rank_documents
from workbench.launching.supervise.run_energy import RunEnergy
from workbench.launching.supervise.run_state import RunState
from workbench.launching.supervise.stop_reasons import StopReasons
from workbench.observe.energy import JOULES_PER_KWH
from workbench.observe.gpu import PatientGpuSampler, gpus_of_record
from workbench.observe.host import HostSampler, sample_pause
from workbench.observe.prediction_error.corrections import record_prediction_error
from workbench.observe.view import ViewBuilder, recent_samples
from workbench.observe.view_readers import ViewReaders
from workbench.recover.checkpoints import Checkpoint
from workbench.recover.limits import RunSpending
from workbench.recover.sealing import Sealer
from workbench.store.files import write_bytes_atomic, write_json_reserved
from workbench.store.findings import EXIT_HANG, Finding, is_for_good
from workbench.store.record import read_end
from workbench.store.schema import OF_THE_END, SCHEMA_VERSION, ExitDoc, ProcessDoc

_MARKED_EVERY_SECONDS = 5.0
_CHECKPOINTS_EVERY_SECONDS = 3.0
_EXIT_RETRY_SECONDS = 60.0
_CATCH_UP_SECONDS = 2.0
_TRACEBACK_CHARS = 4000
_CHECKPOINTS, _FINDINGS = 20, 20  # told in the view; the files have all of them
IDLE = frozenset({"idle-gpus", "idle-machine"})
"""Findings that start what was asked for on an idle machine."""


class RunMonitor:
    """Measures one attempt and writes what it sees."""

    def __init__(self, state: RunState, ranks: RankProcesses, *, begins: bool) -> None:
        """`begins`: an attempt that was started just now, not one that is adopted."""
        self._state = state
        self._paths = paths = state.paths
        self._run = run = state.run
        self._attempts = state.attempts
        self._processes = ranks
        self._builder = ViewBuilder(paths, run)
        self._readers = ViewReaders(paths.view)
        self.diagnoser = Diagnoser(paths, run)
        self._instability = InstabilityWatch()
        self.unstable: Instability | None = None
        self._reasons = StopReasons(state.recovery, since=self._attempts.resumed_at)
        self._builder.on_logged = self._reasons.logged if self._reasons.follows_logged else None
        self._sealer = Sealer(paths, log, searches=run.recipe is None)
        self._sealer.start()
        self._ahead = self._last_pulse = 0
        self._stepped_at: float | None = None  # Unix seconds
        self._checkpoints_due = 0.0
        self._checkpoints: list[Checkpoint] = []
        self.findings: list[Finding] = self.diagnoser.begin_attempt() if begins else []
        self._began = time.monotonic() - (0.0 if begins else self._attempts.seconds_of_present)
        self._seconds_before = self._attempts.seconds_before
        self._first_step_seen: float | None = None
        self._gpus = (
            PatientGpuSampler(gpus_of_record(run.cluster)) if run.device == "cuda" else None
        )
        self._host = HostSampler(paths.directory, run)
        self._system = LineWriter(str(paths.system))
        self._energy = RunEnergy(paths, run, begins=begins)
        self._marked: list[ProcessDoc] = []
        self._marked_due = 0.0
        self._sample_due = 0.0
        self.ranks: dict[int, RankFacts] = {}

    @property
    def steps(self) -> int:
        """The furthest step any rank reported, whether or not all before it has been read."""
        read = (rank.step for rank in self._builder.stream.ranks.values())
        return max([self._ahead, self._last_pulse, *read])

    @property
    def step_seconds(self) -> float | None:
        """Median duration of the recent steps."""
        return self._builder.recent.median

    @property
    def since_step(self) -> float | None:
        """Seconds since the last step that was read ended; None = unknown."""
        elapsed = None if self._stepped_at is None else time.time() - self._stepped_at
        return elapsed if elapsed is not None and elapsed >= 0 else None

    @property
    def first_step(self) -> int:
        """Optimizer steps that were done when this attempt began."""
        return self._attempts.first_step

    @property
    def stepping(self) -> bool:
        """Whether a rank has made a step in this attempt."""
        return self.steps > self._attempts.first_step

    @property
    def standstill(self) -> Finding | None:
        """The finding that the ranks hang for good, while it stands."""
        standing = (finding for finding in self.findings if finding.cleared_at is None)
        return next(
            (hang for hang in standing if hang.kind == EXIT_HANG or is_for_good(hang)), None
        )

    def read(self) -> None:
        """Take in new metric lines."""
        rows = self._builder.read()
        self.diagnoser.rows(rows)
        self._reasons.rows(rows)
        self._stepped_at = rows[-1].time if rows else self._stepped_at
        self._ahead = 0 if self._builder.stream.at_end else furthest(self._paths)
        self._look_for_first_step()

    def _look_for_first_step(self) -> None:
        if self.stepping and self._first_step_seen is None:
            self._state.message = self._attempts.begun_later() or self._state.message
            self._first_step_seen = time.monotonic() if self.stepping else None

    @property
    def stop_reason(self) -> str | None:
        """What the run is to be stopped for by its own rules, as a sentence; None = nothing yet."""
        joules = self._energy.joules
        spent = RunSpending(
            hours=self._attempts.seconds_since_asked / 3600,
            usd=self._run.usd_of(self._elapsed()),
            kwh=None if joules is None else joules / JOULES_PER_KWH,
        )
        return self._reasons.reason(spent)

    @property
    def phase(self) -> str:
        """The phase the run is in."""
        if self._state.ladder.active:
            return "stopping"
        return "running" if self.stepping or self._state.ranks else "starting"

    def catch_up(self) -> None:
        """Take in what was written before we came, for a moment.

        The rest of a long run comes with each look: a stop must not wait for it.
        """
        deadline = time.monotonic() + _CATCH_UP_SECONDS
        self.read()
        while not self._builder.stream.at_end and time.monotonic() < deadline:
            self.read()
        for sample in recent_samples(self._paths):
            self._builder.add_sample(sample)

    def look(self) -> None:
        """Sample and write the view. No defect in here may take the stop ladder down with it."""
        try:
            self.sample()
            self._look_at_ranks()
            self.diagnose()
            if self._readers.due(self._visible_state()):
                self.write_view()
        except Exception:  # noqa: BLE001
            log(f"watching failed, going on:\n{traceback.format_exc()}")

    def _look_at_ranks(self) -> None:
        """Once per look: rules, view and restarts report the same moment."""
        self._processes.follow_spawned()
        self.ranks = self._processes.all_facts()

    def sample(self) -> None:
        """Read metrics and hardware; samples thin out as the run grows long."""
        self.read()
        first = self._first_step_seen
        self._processes.check_world(None if first is None else time.monotonic() - first)
        now = time.monotonic()
        if now >= self._marked_due:
            self._marked = self._state.latest_members()
            self._marked_due = now + (_MARKED_EVERY_SECONDS if self._state.ranks else 1.0)
        if now >= self._sample_due:
            self._sample_due = now + sample_pause(self._elapsed())
            self._sample_hardware()

    def _sample_hardware(self) -> None:
        line = self._host.sample(self._marked)
        if self._gpus is not None:
            line["gpus"] = [sample.document() for sample in self._gpus.sample()]
        self._builder.add_sample(line)
        self._energy.add(line)
        for node, document in self._processes.other_hardware():
            self._builder.add_node(node, document)
            self._energy.add_node(node, document)
            if (sample := document.get("sample")) is not None:
                self.diagnoser.sample(sample, node)
        self.diagnoser.sample(line)
        self._system.write(json.dumps(line, separators=(",", ":")).encode() + b"\n")

    def diagnose(self) -> None:
        """Let the rules look; an idle machine starts what was asked for then."""
        if time.monotonic() >= self._checkpoints_due:
            self._checkpoints_due = time.monotonic() + _CHECKPOINTS_EVERY_SECONDS
            self._checkpoints = self._sealer.look()
        self.findings = self.diagnoser.look(self._facts())
        self.unstable = self._instability.look(self.diagnoser.evidence, self.findings)
        idle = any(finding.kind in IDLE and finding.cleared_at is None for finding in self.findings)
        if idle and self.stepping:  # before the first step a run may load data for long
            self._state.sidecars.idle()

    def _facts(self) -> Facts:
        return Facts(
            phase=self.phase,
            started_at=self._state.started_at,
            elapsed_seconds=self._elapsed(),
            attempt=self._attempts.number,
            world_size=self._state.world_size,
            stopping=self._state.ladder.active and not self._state.ladder.awaits_step,
            ranks=self.ranks,
            nodes=self._processes.node_facts(),
            checkpoints=tuple(self._checkpoints),
            why_not_resumable=lambda: self._resumption()[0],
        )

    def _elapsed(self) -> float:
        """Of all attempts, without the pauses between them."""
        return self._seconds_before + time.monotonic() - self._began

    def write_view(self, phase: str | None = None) -> None:
        """Replace view.json; `phase`: what state.json says, where that is not the attempt's."""
        self._keep_view(self._now(None), phase or self.phase)

    def _visible_state(self) -> object:
        """What a change of is in the view at once, whether or not anyone was reading it."""
        return (
            *(self.phase, self._state.message, self._attempts.number, self._state.world_size),
            [(finding.key, finding.cleared_at) for finding in self.findings],
            [checkpoint.path for checkpoint in self._checkpoints],
            [rank for rank, facts in self.ranks.items() if facts.alive],
        )

    def _now(self, end: ExitDoc | None) -> dict[str, Any]:
        """What the view says of this moment beside the metrics."""
        state: Mapping[str, object] = end or {"message": self._state.message}
        return {
            "phase": "ended" if end else self.phase,
            **{name: state.get(name) for name in OF_THE_END},
            "started_at": self._state.started_at,
            "elapsed_seconds": round(self._elapsed(), 1),
            "steps": max(self._builder.steps, self._last_pulse),
            "world_size": self._state.world_size,
            "restarts": self._state.restarts,
            "attempt": self._attempts.number,
            **self._attempts.summary(),
            "checkpoints": [saved.document() for saved in self._checkpoints[:_CHECKPOINTS]],
            "findings": [
                finding.answer(self._paths.directory) for finding in self.findings[:_FINDINGS]
            ],
            "ranks": rank_documents(self._paths, self.ranks),
            "energy": self._energy.document(self._builder.tokens),
        }

    def _keep_view(self, now: dict[str, Any], phase: str) -> None:
        data = self._builder.encoded(now, phase=phase)
        if guarded("view.json", lambda: write_bytes_atomic(self._paths.view, data)):
            self._readers.written(self._visible_state())

    def judge(self, exit_code: int | None) -> Verdict:
        """Read to the end and tell how the attempt ended."""
        while not self._builder.stream.at_end:
            self.read()
        self.diagnoser.rows(self._builder.read(final=True))
        self._processes.find()  # some may have come and gone between two looks
        self._look_at_ranks()
        # A rank that crashes, or whose disk is full, has made steps of which no line was written.
        pulses = (facts.pulse for facts in self.ranks.values())
        self._last_pulse = max((pulse.steps for pulse in pulses if pulse), default=0)
        for rank in self._state.ranks:
            self._state.vanished.setdefault(rank, time.time())
        self._look_for_first_step()
        # A run too short for the running check is judged at its end.
        if self.stepping and self._state.ranks:
            self._processes.check_world(1e9)
        return judge(
            self._paths,
            ranks=self._state.world_size_asked,
            steps=self.steps,
            exit_code=exit_code,
            stop_reason=self._state.ladder.reason if self._state.ladder.active else None,
            capture=self._run.capture,
            first_step=self.first_step,
            steps_total=self._run.steps_total,
        )

    def finish(self, exit_code: int | None, verdict: Verdict, left: int) -> None:
        """Write view and report of the whole run, and exit.json last."""
        message = verdict.message
        self._sample_last()
        why_not, how = self._resumption({"outcome": verdict.outcome, "message": verdict.message})
        if verdict.outcome in {"stopped", "preempted"} and how:
            message = f"{message} {how}"
        state = self._state
        why = state.limit or state.stop_request.why
        if why and verdict.outcome == "stopped":
            message = f"{why} {message}"
        if state.group and state.world_size not in {None, state.world_size_asked}:
            message = f"{message} {state.group}"
        end: ExitDoc = {
            "schema": SCHEMA_VERSION,
            "outcome": verdict.outcome,
            "exit_code": exit_code,
            "failed_rank": verdict.failed_rank,
            "traceback": self._traceback(verdict.failed_rank),
            "message": message,
            "why_not_resumable": why_not,
            "finding": verdict.finding and verdict.finding.document(),
            "processes_left": left,
            "gpu_memory_left_bytes": self._gpu_memory_left(),
            "ended_at": round(time.time(), 3),
        }
        log(f"{verdict.outcome}: {message}")
        with contextlib.suppress(OSError):
            (self._paths.control / "reserve").unlink()
        self._attempts.end(last_step=self.steps, message=message, at=end["ended_at"])
        self._last_look(verdict, self._state.world_size)
        self._state.write("ended")
        now = self._now(end)
        self._keep_view(now, "stopping")  # until exit.json says more
        self._keep_gap()
        self._write_report(end)
        self._keep_view(now, "ended")
        deadline = time.monotonic() + _EXIT_RETRY_SECONDS
        reserve = self._paths.control / EXIT_RESERVE
        while not guarded("exit.json", lambda: write_json_reserved(reserve, self._paths.exit, end)):
            if time.monotonic() > deadline:
                return
            time.sleep(2)
        self._keep_row()

    def _sample_last(self) -> None:
        """Energy and bill up to now: whether the run may continue is asked of the view."""
        with failure_logged("the last sample"):
            self._sample_hardware()
            self._energy.keep()
            self.write_view("stopping")

    def close(self, verdict: Verdict) -> None:
        """The run continues with another attempt: keep what ended this one, seal what waits."""
        self._sample_last()
        self._last_look(verdict)
        self.write_view("starting")

    def _resumption(self, end: Mapping[str, object] | None = None) -> tuple[str, str]:
        with failure_logged("whether it can be resumed"):
            from workbench.launching.resume.resumable import resumption  # noqa: PLC0415  (needed once)

            return resumption(self._paths, end)
        return "", ""

    def _last_look(self, verdict: Verdict, world_size: int | None = None) -> None:
        with failure_logged("diagnosing the end"):
            self._sealer.look()
            self._sealer.stop()
            self._checkpoints = self._sealer.look()
            self.findings = self.diagnoser.end(verdict.outcome, verdict.finding, world_size)

    def _gpu_memory_left(self) -> int | None:
        if self._gpus is None:
            return None
        pids = {process["pid"] for process in [*self._state.ranks.values(), *self._marked]}
        return self._gpus.memory_of(pids)

    def _traceback(self, rank: int | None) -> str | None:
        end = None if rank is None else read_end(self._paths, rank)
        return with_cells(end.traceback)[-_TRACEBACK_CHARS:] if end and end.traceback else None

    def _keep_gap(self) -> None:
        with failure_logged("comparison.json"):
            record_prediction_error(self._paths, self._run, self.findings)

    def _keep_row(self) -> None:
        with failure_logged("row.json"):
            from workbench.observe.rows import keep_row  # noqa: PLC0415  (needed once)

            keep_row(self._paths)

    def _write_report(self, end: ExitDoc) -> None:
        with failure_logged("report.html"):
            from workbench.observe.report import write_report  # noqa: PLC0415  (needed once)

            write_report(self._paths, end)
