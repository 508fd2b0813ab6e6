"""Builds view.json: all that the charts need, at most 64 kB however long the run."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, cast

from workbench.observe.events import MetricStream, RecentSteps, StepRow, last_rows
from workbench.observe.prediction_error.comparison import compare
from workbench.observe.prediction_error.steady_steps import StepSample
from workbench.observe.rewinds import rewind_fields
from workbench.observe.thinning import Rule, ThinnedTable
from workbench.observe.timeline import Timeline
from workbench.store.files import read_file, read_tail
from workbench.store.layout import RunPaths
from workbench.store.printable import printable
from workbench.store.run_record import RunRecord
from workbench.store.schema import SCHEMA_VERSION, VIEW_MAX_BYTES, SystemLine

_STEP_ROWS = 320
_LOOKS_PER_COMPARISON = 5
_SAMPLE_BYTES = 1 << 19
_FULL_BYTES = 256 << 20  # of a log that is shown in full
_TAIL_BYTES = 8 << 20  # of its end
_LOG_BYTES = 12_000  # all ranks' log tails together
_EXTREME_RANKS = 16  # shown where there is no room for all
_MAX_PEAKS = 512  # of more ranks only the fullest one's
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
_GPU_COLUMNS: dict[str, Rule] = {
    "time": "last",
    "util": "mean",
    "memory_bytes": "max",
    "temperature_c": "max",
    "power_w": "mean",
}


class ViewBuilder:
    """Accumulates a run's metrics and samples, and renders the snapshot."""

    def __init__(self, paths: RunPaths, run: RunRecord) -> None:
        self.paths = paths
        self.run = run
        self.stream = MetricStream(paths, run.processes)
        self.recent = RecentSteps()
        self.steps = 0
        self.first_step_at: float | None = None
        self.loss_first: float | None = None
        self.loss_last: float | None = None
        self.nonfinite_step: int | None = None
        gpus: list[dict[str, Any]] = list(run.cluster.get("gpus") or [])
        rows = 120 if len(gpus) <= 2 else 60
        self._gpus = gpus
        self._steps = ThinnedTable(_STEP_COLUMNS, _STEP_ROWS)
        self._host = ThinnedTable(_HOST_COLUMNS, 120)
        self._devices = {gpu["index"]: ThinnedTable(_GPU_COLUMNS, rows) for gpu in gpus}
        self._timeline = Timeline(run.processes)
        self._sample = StepSample(paths)
        self._may_grow = run.processes == 1
        self._seq = 0
        self._comparison: dict[str, Any] = {}
        self._tokens: int | None = None
        self._samples: int | None = None

    def read(self, *, final: bool = False) -> list[StepRow]:
        """Take in new metric lines; returns the steps that became complete."""
        if self._may_grow:
            self._add_spawned_ranks()
        rows = self.stream.read(final=final)
        for row in rows:
            self._take(row)
        return rows

    def _add_spawned_ranks(self) -> None:
        """Those that have written a step: of others nobody would wait for one."""
        ranks = len(self.stream.ranks)
        while self.paths.rank_metrics(ranks).exists():
            ranks += 1
        self.stream.add_ranks(self.paths, ranks)
        self._timeline.add_ranks(ranks)

    def _take(self, row: StepRow) -> None:
        if row.step <= self.steps:  # the script went back: the second pass replaces the first
            self._steps.drop_beyond("step", row.step - 1)
            if (self.nonfinite_step or 0) >= row.step:
                self.nonfinite_step = None
        self.steps = row.step
        self.first_step_at = self.first_step_at or row.time
        self.recent.add(row)
        if row.loss is not None and row.finite:
            self.loss_first = row.loss if self.loss_first is None else self.loss_first
            self.loss_last = row.loss
        elif not row.finite:
            self.nonfinite_step = self.nonfinite_step or row.step
        self._tokens = row.tokens or self.run.tokens_per_step
        self._samples = row.samples or self._samples
        self._timeline.append(row)
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
        for gpu in sample["gpus"]:
            table = self._devices.get(gpu["index"])
            if table is not None:
                table.append({"time": sample["time"], **gpu})

    def tokens_per_second(self) -> float | None:
        """Rate of the recent steps; None while tokens per step are unknown."""
        median = self.recent.median
        return self._tokens / median if self._tokens and median else None

    def samples_per_second(self) -> float | None:
        """Rate of the recent steps; None for data that comes from no DataLoader."""
        median = self.recent.median
        return self._samples / median if self._samples and median else None

    def upper_bound(self) -> bool:
        """Whether ranks may have been counted that train on the same data as others."""
        own = self.run.recipe is None and len(self.stream.ranks) > 1
        return own and bool(self._tokens or self._samples) and not self.stream.data.known

    def snapshot(self, now: dict[str, Any]) -> dict[str, Any]:
        """The ViewDoc, to be written by `encode`; `now` has the supervisor's fields."""
        self._seq += 1
        written_at = time.time()
        ended, elapsed = now.get("ended_at"), now["elapsed_seconds"]
        price = self.run.usd_per_hour
        document: dict[str, Any] = {
            "schema": SCHEMA_VERSION,
            "seq": self._seq,
            "written_at": round(written_at, 3),
            "run": self.run.run,
            "name": self.run.name,
            "strategy": self.run.strategy_name,
            "processes": self.run.processes,
            "nodes": self.run.nodes,
            "device": self.run.device,
            "first_step_at": self.first_step_at,
            "eta_seconds": None if ended else self._eta(elapsed),
            "steps": self.steps,
            "steps_total": self.run.steps_total,
            **rewind_fields(self.stream.rewinds),
            "stride": self._steps.stride,
            "loss_first": self.loss_first,
            "loss_last": self.loss_last,
            "nonfinite_step": self.nonfinite_step,
            "step_seconds_median": self.recent.median,
            "tokens_per_second": self.tokens_per_second(),
            "samples_per_second": self.samples_per_second(),
            "throughput_upper_bound": self.upper_bound(),
            "usd_per_hour": price,
            "usd_so_far": None if price is None else round(price * elapsed / 3600, 4),
            "series": self._series(),
            "devices": self._device_documents(),
            "host": self._host_document(),
            "predicted": self.run.predicted,
            "peak_memory_bytes": [rank.memory_bytes for rank in self.stream.ranks.values()],
            "lines_skipped": self.stream.lines_skipped,
            "timeline": self._timeline.document(),
            **now,
            "ranks": self._ranks(now.get("ranks", {})),
        }
        if ended or self._seq % _LOOKS_PER_COMPARISON == 1:  # medians of all steps, hardly new ones
            self._comparison = compare(self.run, document, self._sample.steady()).document()
        return document | {"comparison": self._comparison}

    def _series(self) -> dict[str, list[Any]]:
        columns = self._steps.columns()
        tokens, samples = columns.pop("tokens"), columns.pop("samples")
        lengths = columns["step_seconds"]
        columns["tokens_per_second"] = [
            round(count / seconds) if count and seconds else None
            for count, seconds in zip(tokens, lengths, strict=True)
        ]
        if self._tokens is None:  # one rate is drawn
            columns["samples_per_second"] = [
                round(count / seconds, 2) if count and seconds else None
                for count, seconds in zip(samples, lengths, strict=True)
            ]
        return {
            name: values
            for name, values in columns.items()
            if name in {"step", "time"} or any(value is not None for value in values)
        }

    def _eta(self, elapsed: float) -> float | None:
        total, limit, median = self.run.steps_total, self.run.seconds_total, None
        left: list[float] = []
        if total and self.steps and (median := self.recent.median):
            left.append(max(0, total - self.steps) * median)
        if limit and self.first_step_at is not None:
            begun = self.first_step_at - (self.recent.median or 0)
            left.append(max(0.0, begun + limit - time.time()))
        return round(min(left), 1) if left and elapsed else None

    def _device_documents(self) -> list[dict[str, Any]]:
        return [
            {
                "id": f"gpu{gpu['index']}",
                "name": gpu["name"],
                "memory_total_bytes": gpu["memory_bytes"],
                "power_limit_w": gpu.get("power_limit_w"),
                "series": self._devices[gpu["index"]].columns(),
            }
            for gpu in self._gpus
        ]

    def _host_document(self) -> dict[str, Any]:
        cluster = self.run.cluster
        return {
            "name": cluster.get("name"),
            "cores": cluster.get("cpu_cores"),
            "memory_total_bytes": cluster.get("memory_bytes"),
            "series": self._host.columns(),
        }

    def _ranks(self, extra: dict[int, dict[str, Any]]) -> list[dict[str, Any]]:
        each = max(200, min(4000, _LOG_BYTES // max(1, len(self.stream.ranks))))
        return [
            {
                "rank": rank,
                "step": now.step,
                "loss": now.loss,
                "late_seconds": now.late_seconds,
                "peak_memory_bytes": now.memory_bytes,
                "log_tail": log_lines(read_tail(self.paths.rank_log(rank), each), each),
                **extra.get(rank, {}),
            }
            for rank, now in self.stream.ranks.items()
        ]


def recent_samples(paths: RunPaths) -> list[SystemLine]:
    """The latest lines of system.jsonl, for whoever takes over the watch."""
    samples = list[SystemLine]()
    for sample in last_rows(paths.system, _SAMPLE_BYTES):
        if "time" in sample and "gpus" in sample:
            samples.append(cast("SystemLine", sample))
    return samples


def log_lines(text: str, budget: int = 12_000) -> list[str]:
    r"""Printable lines of a log's end: escapes gone, a progress bar's ``\r`` states collapsed.

    >>> log_lines("10%\r50%\r100%\nok \x1b[31mred\x1b[0m")
    ['100%', 'ok red']
    """
    lines = [
        printable(line.rstrip("\r").rpartition("\r")[2]).replace("\r", "")
        for line in text.split("\n")
    ]
    while lines and not lines[-1]:
        lines.pop()
    lines = lines[-200:]
    while len(lines) > 1 and sum(map(len, lines)) > budget:
        lines.pop(0)
    return lines


def log_text(path: Path, tail: int | None) -> str:
    """A whole log, or its last `tail` lines with progress bars collapsed."""
    if tail is None:
        try:
            return read_file(path, _FULL_BYTES).decode("utf-8", errors="replace")
        except OSError:  # not there, a link to elsewhere, or beyond what a screen is for
            return read_tail(path, _FULL_BYTES)
    budget = min(_TAIL_BYTES, 400 * tail)
    return "\n".join(log_lines(read_tail(path, budget), budget)[-tail:])


def encode(document: dict[str, Any]) -> bytes:
    """Strict JSON within the size limit: log tails give way first, then every second row."""
    data = _dumps(document)
    while len(data) > VIEW_MAX_BYTES:
        tails = [rank for rank in document["ranks"] if len(rank["log_tail"]) > 2]
        for rank in tails:
            rank["log_tail"] = rank["log_tail"][len(rank["log_tail"]) // 2 :]
        if not tails and not _thin(document):
            _drop_ranks(document)
            return _dumps(document)
        data = _dumps(document)
    return data


def _drop_ranks(document: dict[str, Any]) -> None:
    """Keep the ranks that one would look for: gone, behind, late, fullest. Says how many go."""
    ranks = document["ranks"]
    document["timeline"] = {"step": [], "ranks": []}
    wanted = sorted(ranks, key=_unremarkable)[:_EXTREME_RANKS]
    document["ranks"] = sorted(wanted, key=lambda one: one["rank"])
    document["ranks_hidden"] = len(ranks) - len(wanted)
    peaks = document["peak_memory_bytes"]
    if len(peaks) > _MAX_PEAKS:
        document["peak_memory_bytes"] = [max((one for one in peaks if one), default=None)]


def _unremarkable(one: dict[str, Any]) -> tuple[Any, ...]:
    ended, alive = one.get("ended"), one.get("alive")
    failed = ended not in {None, "ok"} or alive is False
    return (
        not failed,
        one.get("step") or 0,
        -(one.get("late_seconds") or 0.0),
        -(one.get("peak_memory_bytes") or 0),
    )


def _dumps(document: dict[str, Any]) -> bytes:
    try:
        return json.dumps(document, allow_nan=False, separators=(",", ":")).encode()
    except ValueError:  # rare: a NaN outside the tables
        return json.dumps(finite(document), allow_nan=False, separators=(",", ":")).encode()


def _thin(document: dict[str, Any]) -> bool:
    """Drop every second row of all tables; False when they are short already."""
    tables = [device["series"] for device in document["devices"]]
    tables += [document["series"], document["host"]["series"]]
    long = [table for table in tables if len(table.get("time", [])) > 16]
    for table in long:
        for name, values in table.items():
            table[name] = values[:-1:2] + values[-1:]
    return bool(long)


def finite(value: Any) -> Any:
    """Replace NaN and infinities by None, all the way down (strict JSON knows neither)."""
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in cast("dict[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in cast("list[Any]", value)]
    return value
