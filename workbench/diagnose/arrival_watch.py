"""Follows the order of arrival of a living run, or reads what was recorded of it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

from workbench.diagnose.evidence import Evidence
from workbench.observe.arrival_calls import Call, parts, read_rank
from workbench.observe.arrival_window import ArrivalWindow, read_window
from workbench.observe.arrivals import join
from workbench.observe.core_time import CoreTime
from workbench.observe.rank_count import rank_count
from workbench.store.files import LineReader, append_line
from workbench.store.layout import RunPaths

_LIVE_SECONDS = 1.0
_AT_ONCE = 0.2  # CPU seconds of one look; the rest comes with the next ones
_COST = 20  # times what a reading took pass until the next one
_OLD_SECONDS = 200.0  # lines of a run come further apart by its age, a two hundredth of it


class ArrivalWatch:
    """Joins what the ranks wrote into `Evidence.arrivals`, or reads what was joined live.

    The files of a thousand ranks take seconds to read: each look does a part of it.
    """

    def __init__(self, paths: RunPaths, *, live: bool) -> None:
        self._paths, self._live = paths, live
        self._due = self._written_at = self._spent = 0.0
        self._joined_to = 0
        self._work: Iterator[None] | None = None
        self._attempt = 0
        self._recorded = self._read()
        self._next = None if live else next(self._recorded, None)

    def look(self, evidence: Evidence, *, final: bool = False) -> None:
        """Bring `evidence` up to date."""
        if not self._live:
            while self._next is not None and self._next.time <= evidence.facts.time + 0.5:
                evidence.arrivals.append(self._next)
                self._next = next(self._recorded, None)
            return
        if evidence.processes < 2 or evidence.run.device == "cuda":
            return
        now = time.monotonic()
        if self._work is not None and self._attempt != evidence.facts.attempt:
            self._work = None
        if self._work is None and (final or now >= self._due):
            self._work, self._spent = self._join(evidence, final=final), 0.0
            self._attempt = evidence.facts.attempt
        if self._work is not None:
            work, self._work = self._work, None
            if not self._finishes(work, final=final):
                self._work = work
            self._due = now + max(_LIVE_SECONDS, _COST * self._spent)

    def _finishes(self, work: Iterator[None], *, final: bool) -> bool:
        begun = time.thread_time()
        for _ in work:
            if not final and time.thread_time() - begun > _AT_ONCE:
                self._spent += time.thread_time() - begun
                return False
        self._spent += time.thread_time() - begun
        return True

    def _join(self, evidence: Evidence, *, final: bool) -> Iterator[None]:
        rows = list(evidence.rows)
        if not rows:
            return
        if not (rows[-1].waited_seconds or self._paths.rank_arrivals(0).exists()):
            return
        if evidence.steps < self._joined_to:  # steps are done again
            self._joined_to = 0
        ranks = rank_count(self._paths, evidence.run.processes)
        chosen = parts(read_rank(self._paths.rank_arrivals(0))[0], rows, ranks)
        begin = chosen[0][0] if len(chosen) > 1 else None  # all, where there are few ranks
        calls: dict[int, list[Call]] = {}
        core_times: dict[int, CoreTime] = {}
        for rank in range(ranks):
            path = self._paths.rank_arrivals(rank)
            since, step = (begin.ended_at.get(rank, 0.0), begin.step) if begin else (0.0, 0)
            calls[rank], core_times[rank] = read_rank(path, since, step)
            yield
        starts = evidence.starts.items()
        hosts = {rank: start.process["boot_id"] for rank, start in starts if start.process}
        for some in chosen:
            window = join(calls, some, self._joined_to, hosts=hosts, core_times=core_times)
            if window is not None:
                self._keep(window, evidence, final=final)
            yield

    def _keep(self, window: ArrivalWindow, evidence: Evidence, *, final: bool) -> None:
        self._joined_to = window.last
        evidence.arrivals.append(window)
        if final or window.time - self._written_at >= evidence.facts.elapsed_seconds / _OLD_SECONDS:
            self._written_at = window.time
            text = json.dumps(window.document(), separators=(",", ":"))
            append_line(self._paths.arrivals, text.encode())

    def _read(self) -> Iterator[ArrivalWindow]:
        reader = LineReader(self._paths.arrivals)
        while lines := reader.read():
            yield from (window for line in lines if (window := read_window(line)) is not None)
