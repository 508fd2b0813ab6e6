"""The curve of a run: at most a few hundred rows with every scale that runs are compared along."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from workbench.observe.events import StepRow, metric_bytes, recorded_rows
from workbench.observe.rank_count import rank_count
from workbench.observe.thinning import Number, Rule, ThinnedTable
from workbench.observe.work_clock import StepClock
from workbench.store.files import read_json
from workbench.store.layout import RunPaths
from workbench.store.record import read_run
from workbench.store.run_record import RunRecord

MAX_ROWS = 500
MAX_METRIC_BYTES = 256 << 20  # about 1.3 million lines: half a minute
_RULES: dict[str, Rule] = {
    "step": "last",
    "time": "last",
    "tokens": "last",
    "loss": "mean",
    "loss_min": "min",
    "loss_max": "max",
    "step_seconds": "mean",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Equally long columns; a row stands for `stride` optimizer steps and lies at its last one."""

    step: tuple[Number, ...] = ()
    """Optimizer steps done."""
    seconds: tuple[Number, ...] = ()
    """Since the start, without the pauses between attempts."""
    tokens: tuple[Number, ...] = ()
    """Consumed by all ranks since the start."""
    usd: tuple[Number, ...] = ()
    """Spent since the start; None throughout where the run has no price."""
    loss: tuple[Number, ...] = ()
    """Mean over the row's steps and all ranks."""
    loss_min: tuple[Number, ...] = ()
    """Lowest loss of a step in the row."""
    loss_max: tuple[Number, ...] = ()
    """Highest."""
    stride: int = 1
    """Steps per row."""

    def document(self) -> dict[str, Any]:
        """Plain JSON form; `read` takes it back."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Curve:
        """The curve of a kept document."""
        names = [field.name for field in fields(cls) if field.name != "stride"]
        columns: dict[str, Any] = {name: tuple(document[name]) for name in names}
        return cls(**columns, stride=document["stride"])


def read_curve(paths: RunPaths) -> Curve:
    """The curve of a run, from its view; from its metric files where it has none.

    Those are read once, in bounded memory, and not at all beyond `MAX_METRIC_BYTES`: an empty
    curve then says that nothing is known.
    """
    curve = view_curve(paths)
    if curve is not None:
        return curve
    run = read_run(paths) or RunRecord()
    return _curve(paths, *_from_metrics(paths, run))


def view_curve(paths: RunPaths) -> Curve | None:
    """The curve of a run as its view has it; None where there is none. Quick however long it is."""
    view = read_json(paths.view) or {}
    series: dict[str, list[Number]] = _filled(view.get("series") or {})
    if not series["step"]:
        return None
    series["tokens"] = _tokens(series, read_run(paths) or RunRecord())
    return _curve(paths, series, view.get("stride") or 1)


def _curve(paths: RunPaths, series: Mapping[str, Sequence[Number]], stride: int) -> Curve:
    run, view = read_run(paths) or RunRecord(), read_json(paths.view) or {}
    clock = StepClock.read(paths, view, run.created_at)
    seconds = [
        None if at is None else clock.at(at, None if took is None else stride * took)
        for at, took in zip(series["time"], series["step_seconds"], strict=True)
    ]
    curve = Curve(
        step=tuple(series["step"]),
        seconds=tuple(seconds),
        tokens=tuple(series["tokens"]),
        loss=tuple(series["loss"]),
        loss_min=tuple(series["loss_min"]),
        loss_max=tuple(series["loss_max"]),
        stride=stride,
    )
    return replace(curve, usd=tuple(map(run.usd_of, seconds)))


def _filled(series: Mapping[str, list[Number]]) -> dict[str, list[Number]]:
    """A view's columns; what a foreign or an older one does not have is unknown throughout."""
    rows = len(series.get("step", ()))
    names = (*_RULES, "tokens_per_second")
    fitting = {name: column for name in names if len(column := series.get(name, [])) == rows}
    return {name: fitting.get(name, [None] * rows) for name in names}


def _tokens(series: Mapping[str, Sequence[Number]], run: RunRecord) -> list[Number]:
    """Tokens consumed up to each row: counted where a step's are known, else from the rates.

    None from where those of a step are unknown, as their sum is then.
    """
    per_step = run.tokens_per_step
    if per_step and not run.tokens_before:
        return [None if step is None else step * per_step for step in series["step"]]
    total: float | None = 0.0
    before, totals = 0.0, list[Number]()
    for step, tokens in zip(series["step"], _tokens_per_step(series), strict=True):
        if total is None or step is None or tokens is None:
            total = None
        else:
            total += tokens * (step - before)
            before = step
        totals.append(None if total is None else round(total))
    return totals


def _tokens_per_step(series: Mapping[str, Sequence[Number]]) -> list[Number]:
    """Of each row. The first step of an attempt has no duration: it has as many as the next."""
    columns = zip(series["tokens_per_second"], series["step_seconds"], strict=True)
    measured = [
        (seconds is not None, None if rate is None or seconds is None else rate * seconds)
        for rate, seconds in columns
    ]
    near = next((tokens for timed, tokens in reversed(measured) if timed), None)
    tokens_by_row = list[Number]()
    for timed, tokens in reversed(measured):
        near = tokens if timed else near
        tokens_by_row.append(near)
    return tokens_by_row[::-1]


def _from_metrics(paths: RunPaths, run: RunRecord) -> tuple[dict[str, list[Number]], int]:
    """Of a run without a view: every metric line, read once and thinned on the way."""
    table = ThinnedTable(_RULES, MAX_ROWS)
    ranks = rank_count(paths, run.processes)
    if not 0 < metric_bytes(paths, ranks) <= MAX_METRIC_BYTES:
        return table.columns(), 1
    count = TokenCount(run)
    for row in recorded_rows(paths, ranks):
        same = {"loss": row.loss, "loss_min": row.loss, "loss_max": row.loss}
        place = {"step": row.step, "time": row.time, "tokens": count.up_to(row)}
        table.append({**place, **same, "step_seconds": row.step_seconds})
    return table.columns(), table.stride


class TokenCount:
    """Tokens of all ranks up to a step, taken in step by step.

    Steps that are not there, as those before a fork, consumed as many as the one after them.
    """

    def __init__(self, run: RunRecord) -> None:
        self._run = run
        self._total: int | None = 0
        self._step = 0

    def up_to(self, row: StepRow) -> int | None:
        """Tokens up to and with this step; None once a step's tokens are unknown."""
        per_step = self._run.tokens_per_step
        if per_step and not self._run.tokens_before:
            return row.step * per_step
        made, self._step = row.step - self._step, row.step
        tokens = self._run.tokens_at(row.time) if row.tokens is None else row.tokens
        if self._total is not None:
            self._total = None if tokens is None else self._total + made * tokens
        return self._total
