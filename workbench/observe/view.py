"""Builds view.json: all that the charts need, at most 64 kB however long the run."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

from workbench.observe.consumed import Consumed
from workbench.observe.device_fleet import Devices
from workbench.observe.events import MetricStream, StepRow, last_rows
from workbench.observe.log_tails import LogTail
from workbench.observe.logged import MAX_NAMES, LoggedRow, LoggedStream
from workbench.observe.prediction_error.comparison import compare
from workbench.observe.prediction_error.steady_steps import StepSample
from workbench.observe.rank_grid import RankGrid
from workbench.observe.recent_steps import RecentSteps
from workbench.observe.rewinds import rewind_fields
from workbench.observe.series_tables import SeriesTables
from workbench.observe.thinning import Number, Rule, ThinnedTable
from workbench.observe.timeline import Timeline
from workbench.observe.view_json import (
    TableText,
    encode,
    encode_parts,
    extreme_ranks,
    shown_peaks,
)
from workbench.store.actions import step_marks
from workbench.store.layout import RunPaths
from workbench.store.node_schema import NodeDoc
from workbench.store.run_record import RunRecord
from workbench.store.schema import SCHEMA_VERSION, VIEW_MAX_BYTES, SystemLine

_STEP_ROWS = 320
_LOOKS_PER_COMPARISON = 10
_SAMPLE_BYTES = 1 << 19
_LOG_BYTES = 12_000  # all ranks' log tails together
_STEP_COLUMNS: dict[str, Rule] = {
    "step": "last",
    "time": "last",
    "loss": "mean",
    "loss_min": "min",
    "loss_max": "max",
    "lr": "last",
    "grad_norm": "mean",
    "grad_norm_max": "max",
    "step_seconds": "mean",
    "step_seconds_max": "max",
    "tokens": "mean",
    "samples": "mean",
}
_HOST_COLUMNS: dict[str, Rule] = {
    "time": "last",
    "cpu_percent": "mean",
    "memory_used_bytes": "max",
    "run_rss_bytes": "max",
    "run_cpu_percent": "mean",
    "disk_free_bytes": "min",
}
_REQUIRED = ("step", "time")  # columns that are there without a value
_ALL_RANKS = 64  # up to so many are listed one by one


class ViewBuilder:
    """Accumulates a run's metrics and samples, and renders the snapshot."""

    def __init__(self, paths: RunPaths, run: RunRecord, *, step_rows: int = _STEP_ROWS) -> None:
        """`step_rows`: of the curves over the steps, at most."""
        self.paths = paths
        self.run = run
        self.stream = MetricStream(paths, run.processes)
        self.recent = RecentSteps()
        self._logged = LoggedStream(paths, range(run.processes), MAX_NAMES)
        self._logged_series = SeriesTables()
        self.on_logged: Callable[[LoggedRow], None] | None = None
        self.steps = 0
        self.first_step_at: float | None = None
        self._begun_at: list[float] = []  # first steps of attempts, and of rewinds
        self.loss_first: float | None = None
        self.loss_last: float | None = None
        self.nonfinite_step: int | None = None
        gpus: list[dict[str, Any]] = list(run.cluster.get("gpus") or [])
        self._devices = Devices(gpus, max(1, run.nodes), on_gpu=run.device == "cuda")
        self._steps = ThinnedTable(_STEP_COLUMNS, step_rows)
        self._host = ThinnedTable(_HOST_COLUMNS, 120)
        self._steps_text = TableText(self._steps, _with_rates)
        self._host_text = TableText(self._host)
        self._logs: dict[int, LogTail] = {}
        self._timeline = Timeline(run.processes)
        self._rank_grid = RankGrid()
        self._processes: list[dict[str, Any]] = []
        self._sample = StepSample(paths, since=run.work_since or 0.0)
        self._may_grow = run.processes == 1
        self._seq = 0
        self._comparison: dict[str, Any] = {}
        self._tokens: int | None = None
        self._consumed = Consumed()
        self._samples: int | None = None

    def read(self, *, final: bool = False) -> list[StepRow]:
        """Take in new metric lines; returns the steps that became complete."""
        if self._may_grow:
            self._add_spawned_ranks()
        rows = self.stream.read(final=final)
        self.add_rows(rows)
        self._read_logged(to_end=final)
        return rows

    def add_rows(self, rows: Iterable[StepRow]) -> None:
        """Take in finished steps, in order; `read` does with those that it reads."""
        for row in rows:
            self._take(row)

    def _read_logged(self, *, to_end: bool) -> None:
        while True:
            for row in self._logged.read():
                self._logged_series.add(row)
                if self.on_logged is not None:
                    self.on_logged(row)
            if self._logged.at_end or not to_end:
                return

    def _add_spawned_ranks(self) -> None:
        """Those that have written a step: of others no one would wait for one."""
        ranks = len(self.stream.ranks)
        while self.paths.rank_metrics(ranks).exists():
            ranks += 1
        self.stream.add_ranks(self.paths, ranks)
        self._logged.add_ranks(self.paths, ranks)
        self._timeline.add_ranks(ranks)

    def _take(self, row: StepRow) -> None:
        if row.step <= self.steps:  # the script went back: the second pass replaces the first
            self._steps.drop_beyond(row.step - 1)
            if (self.nonfinite_step or 0) >= row.step:
                self.nonfinite_step = None
        self.steps = row.step
        self.first_step_at = self.first_step_at or row.time
        if row.step_seconds is None:
            self._begun_at.append(row.time)
        if row.loss is not None and row.finite:
            self.loss_first = row.loss if self.loss_first is None else self.loss_first
            self.loss_last = row.loss
        elif not row.finite:
            self.nonfinite_step = self.nonfinite_step or row.step
        self._tokens = row.tokens or self.run.tokens_at(row.time)
        self._samples = row.samples or self._samples
        self.recent.add(row, self._tokens)
        self._consumed.add(row.step, self._tokens)
        self._timeline.append(row)
        self._rank_grid.append(row)
        self._sample.add(row)
        self._steps.append(
            {
                "step": row.step,
                "time": round(row.time, 2),
                "loss": row.loss,
                "loss_min": row.loss,
                "loss_max": row.loss,
                "lr": row.lr,
                "grad_norm": row.grad_norm,
                "grad_norm_max": row.grad_norm,
                "step_seconds": row.step_seconds,
                "step_seconds_max": row.step_seconds,
                "tokens": self._tokens,
                "samples": row.samples,
            }
        )

    def add_sample(self, sample: SystemLine) -> None:
        """Take in one hardware sample."""
        self._host.append(cast("dict[str, float | None]", sample))
        self._devices.add(0, sample)
        self._processes = sample.get("busiest") or self._processes

    def add_node(self, node: int, document: NodeDoc) -> None:
        """Take in what another machine told of its hardware."""
        self._devices.describe(node, document.get("host"), document.get("gpus") or ())
        sample = document.get("sample")
        if sample is not None:
            self._devices.add(node, sample)

    @property
    def tokens(self) -> int | None:
        """Consumed in all steps of the curve; None while those of a step are unknown."""
        return self._consumed.tokens

    def upper_bound(self) -> bool:
        """Whether ranks may have been counted that train on the same data as others."""
        own = self.run.recipe is None and len(self.stream.ranks) > 1
        return own and bool(self._tokens or self._samples) and not self.stream.data.is_conclusive

    def snapshot(self, now: dict[str, Any]) -> dict[str, Any]:
        """The ViewDoc, to be written by `encode`; `now` has the supervisor's fields."""
        document = self._document(now)
        return document | self._tables() | {"comparison": self._compared(document)}

    def encoded(self, now: dict[str, Any], **overrides: Any) -> bytes:
        """`snapshot` with the `overrides`, encoded: of the tables only what is new."""
        document = self._document(now)
        document |= {"comparison": self._compared(document), **overrides}
        data = encode_parts(document, self._table_texts(latest=bool(now.get("ended_at"))))
        return data if len(data) <= VIEW_MAX_BYTES else encode(document | self._tables())

    def _compared(self, document: dict[str, Any]) -> dict[str, Any]:
        """Medians of all steps are hardly new ones at each look."""
        if document.get("ended_at") or self._seq % _LOOKS_PER_COMPARISON == 1:
            steady = self._sample.steady()
            self._comparison = compare(self.run, document | self._tables(), steady).document()
        return self._comparison

    def _document(self, now: dict[str, Any]) -> dict[str, Any]:
        """All but the tables and the comparison."""
        self._seq += 1
        written_at = time.time()
        ended, elapsed = now.get("ended_at"), now["elapsed_seconds"]
        usd = self.run.usd_of(elapsed)
        if ended:
            self._processes = []  # the last sample had those that were closing down
        return {
            "schema": SCHEMA_VERSION,
            "seq": self._seq,
            "written_at": round(written_at, 3),
            "run": self.run.run,
            "name": self.run.name,
            "rehearsal": self.run.rehearsal is not None,
            "strategy": self.run.strategy_name,
            "processes": self.run.processes,
            "nodes": self.run.nodes,
            "device": self.run.device,
            "first_step_at": self.first_step_at,
            "eta_seconds": None if ended else self._eta(elapsed, now.get("attempts") or ()),
            "steps": self.steps,
            "steps_total": self.run.steps_total,
            **rewind_fields(self.stream.rewinds),
            "stride": self._steps.stride,
            "loss_first": self.loss_first,
            "loss_last": self.loss_last,
            "nonfinite_step": self.nonfinite_step,
            "step_seconds_median": self.recent.median,
            "tokens_per_step": None if self.run.tokens_before else self.run.tokens_per_step,
            "tokens_per_second": self.recent.tokens_per_second,
            "samples_per_second": self.recent.samples_per_second,
            "throughput_upper_bound": self.upper_bound(),
            "usd_per_hour": self.run.usd_per_hour,
            "usd_before": self.run.usd_before,
            "usd_so_far": None if usd is None else round(usd, 4),
            "predicted": self.run.predicted,
            "peak_memory_bytes": shown_peaks([r.memory_bytes for r in self.stream.ranks.values()]),
            "lines_skipped": self.stream.lines_skipped,
            "timeline": self._timeline.document(),
            "rank_grid": self._rank_grid.document(len(self.stream.ranks), self.stream.begun),
            "grid": self._devices.grid(),
            "text_samples": self._logged.samples.document(),
            "actions": step_marks(self.paths),
            **now,
            **self._ranks(now.get("ranks", {})),
        }

    def _tables(self) -> dict[str, Any]:
        texts = self._table_texts(latest=True)
        return {name: json.loads(text) for name, text in texts.items()}

    def _table_texts(self, *, latest: bool) -> dict[str, str]:
        """Series, host, devices and what was logged, as JSON."""
        host = encode_parts(self._host_fields(), {"series": self._host_text.text()})
        return {
            "series": self._series(),
            "host": host.decode(),
            "devices": self._devices.curves(),
            "device_spread": self._devices.spread(),
            "logged": self._logged_series.text(self._logged.left_out, latest=latest),
        }

    def _series(self) -> str:
        hidden = () if self._tokens is None else ("samples_per_second",)  # one rate is drawn
        return self._steps_text.text(hidden, required=_REQUIRED)

    def curves(self) -> dict[str, Any]:
        """The view's ``series`` and ``stride`` alone."""
        return {"series": json.loads(self._series()), "stride": self._steps.stride}

    def _eta(self, elapsed: float, attempts: Iterable[Mapping[str, Any]]) -> float | None:
        total, limit, median = self.run.steps_total, self.run.seconds_total, None
        left: list[float] = []
        if total and self.steps and (median := self.recent.median):
            left.append(max(0, total - self.steps) * median)
        started = max(
            (attempt["time"] for attempt in attempts if attempt["event"] == "start"), default=0.0
        )
        first = next((at for at in self._begun_at if at >= started), None)
        if limit and first is not None:  # each attempt has the whole limit
            begun = first - (self.recent.median or 0)
            left.append(max(0.0, begun + limit - time.time()))
        return round(min(left), 1) if left and elapsed else None

    def _host_fields(self) -> dict[str, Any]:
        cluster = self.run.cluster
        return {
            "name": cluster.get("name"),
            "cores": cluster.get("cpu_cores"),
            "memory_total_bytes": cluster.get("memory_bytes"),
            "processes": self._processes,
        }

    def _ranks(self, extra: dict[int, dict[str, Any]]) -> dict[str, Any]:
        """All ranks; of very many the extreme ones, and how many are left out."""
        every: list[dict[str, Any]] = [
            {
                "rank": rank,
                "step": now.step,
                "loss": now.loss,
                "late_seconds": now.late_seconds,
                "peak_memory_bytes": now.memory_bytes,
                **extra.get(rank, {}),
            }
            for rank, now in self.stream.ranks.items()
        ]
        shown_ranks = every if len(every) <= _ALL_RANKS else extreme_ranks(every)
        each = max(200, min(4000, _LOG_BYTES // max(1, len(shown_ranks))))
        ranks = [rank | {"log_tail": self._log(rank["rank"]).lines(each)} for rank in shown_ranks]
        hidden = len(every) - len(shown_ranks)
        return {"ranks": ranks} | ({"ranks_hidden": hidden} if hidden else {})

    def _log(self, rank: int) -> LogTail:
        return self._logs.setdefault(rank, LogTail(self.paths.rank_log(rank)))


def _with_rates(row: dict[str, Number]) -> dict[str, Number]:
    """A row of the steps as it is shown: with rates for what a step holds."""
    tokens, samples = row.pop("tokens"), row.pop("samples")
    seconds = row["step_seconds"]
    row["tokens_per_second"] = _rate(tokens, seconds)
    row["samples_per_second"] = _rate(samples, seconds)
    return row


def _rate(amount: Number, seconds: Number) -> Number:
    """Per second, with four digits at least: of slow steps it is a small number."""
    if not amount or not seconds:
        return None
    rate = amount / seconds
    return round(rate) if rate >= 1000 else float(f"{rate:.4g}")


def recent_samples(paths: RunPaths, max_bytes: int = _SAMPLE_BYTES) -> list[SystemLine]:
    """The latest lines of system.jsonl, for a process that takes over; reads no more bytes."""
    samples = list[SystemLine]()
    for sample in last_rows(paths.system, max_bytes):
        if "time" in sample and "gpus" in sample:
            samples.append(cast("SystemLine", sample))
    return samples
