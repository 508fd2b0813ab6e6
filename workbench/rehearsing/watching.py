"""What a supervisor would see of a rehearsed run: rules, samples and the view, on its clock."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast, final

from workbench.diagnose.diagnoser import Diagnoser
from workbench.diagnose.facts import Facts, NodeFacts, RankFacts
from workbench.observe.events import StepRow
from workbench.observe.report_recovery import REHEARSED_KIND
from workbench.observe.view import ViewBuilder
from workbench.observe.work_clock import recent_attempts
from workbench.rehearsing.cards import Cards, SimulatedDriver
from workbench.rehearsing.journal import Journal
from workbench.store.files import append_line, write_bytes_atomic, write_json_atomic
from workbench.store.findings import Finding, worst_first
from workbench.store.schema import OF_THE_END, ExitDoc, SystemLine

_MAX_FINDINGS, _MAX_CHECKPOINTS = 20, 20  # in the view


@final
class Watcher:
    """Feeds the same view and rules as a supervisor, and writes what they say."""

    def __init__(self, journal: Journal, cards: Cards, driver: SimulatedDriver | None) -> None:
        self._journal, self._cards, self._driver = journal, cards, driver
        self._run, self._paths = journal.run, journal.paths
        self.builder = ViewBuilder(self._paths, self._run)
        self._diagnoser = self._new_diagnoser()
        self._past: list[Finding] = []
        self._present: list[Finding] = []
        self._shown_states: Mapping[int, str] | None = None
        self._written_findings: list[Finding] | None = None
        self._checkpoints: deque[dict[str, Any]] = deque(maxlen=_MAX_CHECKPOINTS)
        self.usd: float | None = None

    def _new_diagnoser(self) -> Diagnoser:
        errors = self._driver is not None
        return Diagnoser(self._paths, self._run, keep=False, gpu_errors=errors)

    @property
    def findings(self) -> list[Finding]:
        """All so far, worst first."""
        return worst_first([*self._present, *self._past])

    def begin_attempt(self, at: float) -> None:
        """What stood then was of the attempt before."""
        now = round(self._journal.began + at, 3)
        old = [replace(finding, cleared_at=finding.cleared_at or now) for finding in self._present]
        by_key = {finding.key: finding for finding in [*self._past, *old]}
        self._past, self._present = list(by_key.values()), []
        self._diagnoser = self._new_diagnoser()

    def sample(self, at: float, states: Mapping[int, str]) -> None:
        """One hardware sample of every machine."""
        for node in range(max(1, self._run.nodes)):
            drives = node == 0 and self._driver is not None
            gpus = self._driven(at, states) if drives else self._cards.readings(node, states)
            line = _line(self._journal.began + at, gpus)
            append_line(self._paths.node_system(node), json.dumps(line).encode())
            self._diagnoser.sample(line, node)
            if node == 0:
                self.builder.add_sample(line)
            else:
                described_gpus = self._run.cluster["gpus"]
                document: Any = {"host": f"machine-{node}", "gpus": described_gpus, "sample": line}
                self.builder.add_node(node, document)

    def _driven(self, at: float, states: Mapping[int, str]) -> list[dict[str, Any]]:
        """The first machine's GPUs, as the simulated driver tells them."""
        assert self._driver is not None
        if states != self._shown_states:
            self._driver.show(self._cards.pod(0, states, at), at)
            self._shown_states = dict(states)
        self._driver.tick(at)
        return self._driver.sample()

    def saved(self, at: float, step: int) -> None:
        """The plan saved a checkpoint here; a rehearsal writes none."""
        self._checkpoints.appendleft(
            {
                "step": step,
                "name": f"step-{step}",
                "path": None,
                "bytes": None,
                "saved_at": self._journal.began + at,
                "kind": REHEARSED_KIND,
                "sealed": False,
                "problem": "",
            }
        )

    def rows(self, rows: Sequence[StepRow]) -> None:
        """Steps that were done."""
        self.builder.add_rows(rows)
        self._diagnoser.rows(rows)
        for row in rows[-1:]:
            first = min(row.backward_at.values(), default=row.time)
            for rank, now in self.builder.stream.ranks.items():
                now.step, now.loss = row.step, row.losses.get(rank)
                now.late_seconds = row.backward_at.get(rank, first) - first

    def look(self, at: float, attempt: int, states: Mapping[int, str]) -> None:
        """Let the rules look."""
        began = self._journal.began
        nodes = tuple(self._node(node, states, at) for node in range(self._run.nodes))
        self._present = self._diagnoser.look(
            Facts(
                phase="running",
                elapsed_seconds=at,
                started_at=began,
                attempt=attempt,
                world_size=self._run.processes,
                ranks={0: RankFacts()},
                nodes=nodes,
                monotonic=began + at,
                time=began + at,
            )
        )

    def _node(self, node: int, states: Mapping[int, str], at: float) -> NodeFacts:
        """A machine as its agent would report it; the driver of the first one is asked itself."""
        each = self._run.processes // max(1, self._run.nodes)
        return NodeFacts(
            node=node,
            ranks=f"ranks {node * each} to {(node + 1) * each - 1}",
            gpu_errors=self._cards.errors(node, states, at) if node else (),
        )

    def end(self, outcome: str) -> None:
        """The run is over."""
        if self._driver is not None:
            self._driver.go_idle()
        self._present = self._diagnoser.end(outcome, None)

    def write(self, at: float, phase: str, attempt: int, end: ExitDoc | None = None) -> None:
        """view.json and findings.json; `end`: how it ended."""
        state: Mapping[str, object] = end or {"message": self._journal.message}
        folder = self._paths.directory
        data = self.builder.encoded(
            {
                "phase": phase,
                **{key: state.get(key) for key in OF_THE_END},
                "started_at": self._journal.began,
                "elapsed_seconds": round(at, 1),
                "world_size": self._run.processes,
                "restarts": max(0, attempt - 1),
                "attempt": attempt,
                **recent_attempts(self._journal.attempts),
                "checkpoints": list(self._checkpoints),
                "throughput_upper_bound": False,
                "findings": [finding.answer(folder) for finding in self.findings[:_MAX_FINDINGS]],
                "ranks": {},
                "usd_so_far": None if self.usd is None else round(self.usd, 2),
            }
        )
        write_bytes_atomic(self._paths.view, data)
        if self.findings != self._written_findings:
            self._written_findings = self.findings
            findings = [finding.document() for finding in self._written_findings]
            write_json_atomic(self._paths.findings, {"schema": 1, "findings": findings})


def _line(at: float, gpus: list[dict[str, Any]]) -> SystemLine:
    """A sample of which the host's part is not known."""
    names = ("cpu_percent", "memory_used_bytes", "run_rss_bytes", "run_cpu_percent")
    unknown = dict.fromkeys((*names, "disk_free_bytes", "net_bytes_per_second"))
    return cast("SystemLine", {"time": round(at, 3), **unknown, "gpus": gpus})
