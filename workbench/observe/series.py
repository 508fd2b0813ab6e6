"""Every logged name as a bounded series: computed once, read by view, commands, report and page.

Names that are logged together share a table of steps. A series keeps exactly what people ask for
first (last, lowest, highest, how often it was no number) and a curve of bounded length whose points
have the mean, the lowest and the highest of what they stand for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from workbench.observe.logged import LoggedStream, matches_any
from workbench.observe.rank_count import rank_count
from workbench.observe.series_names import better, group_of, is_validation_loss
from workbench.observe.series_tables import SeriesTables
from workbench.observe.thinning import Number
from workbench.store.files import read_json
from workbench.store.layout import RunPaths
from workbench.store.record import read_run
from workbench.store.run_record import RunRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One logged name over the steps; a point stands for `stride` logged values."""

    name: str
    """As the script logged it."""
    figure: str
    """Title of the figure that it is drawn in: names of a group whose sizes are alike."""
    group: str
    """Its prefix (``eval`` of ``eval/loss`` and ``eval_loss``); "" without one."""
    is_validation_loss: bool
    """Whether it belongs beside the training loss."""
    better: str | None
    """"lower" or "higher"; None where the name does not tell."""
    step: tuple[Number, ...] = ()
    """Of each point: optimizer steps done."""
    time: tuple[Number, ...] = ()
    """Unix seconds."""
    mean: tuple[Number, ...] = ()
    """Mean of its numbers; None where all of them were NaN or infinite."""
    low: tuple[Number, ...] = ()
    """Lowest; empty where a point is one value, or where there was no room."""
    high: tuple[Number, ...] = ()
    """Highest, likewise."""
    stride: int = 1
    """Logged values per point."""
    count: int = 0
    """Values logged."""
    last: float | None = None
    """The latest number, and the next line its step."""
    last_step: int | None = None
    """Where."""
    min: float | None = None
    """The lowest of all numbers, however few points are kept."""
    min_step: int | None = None
    """Where."""
    max: float | None = None
    """The highest."""
    max_step: int | None = None
    """Where."""
    nonfinite: int = 0
    """How many values were NaN or infinite: gaps of the curve."""
    nonfinite_step: int | None = None
    """Where the first of them was."""
    nonfinite_end: bool = False
    """Whether the latest value was one of them."""

    @property
    def best(self) -> float | None:
        """The extreme that counts; None where it is not known which does."""
        return {"lower": self.min, "higher": self.max}.get(self.better or "")

    @property
    def best_step(self) -> int | None:
        """Where."""
        return {"lower": self.min_step, "higher": self.max_step}.get(self.better or "")

    def document(self) -> dict[str, Any]:
        """Plain JSON form of all but the curve."""
        names = (field.name for field in fields(self) if field.name not in _NOT_SHOWN)
        best = {"best": self.best, "best_step": self.best_step}
        return {name: getattr(self, name) for name in names} | best


_NOT_SHOWN = ("step", "time", "mean", "low", "high", "stride", "nonfinite_end")
_FACTS = (
    *("count", "last", "last_step", "min", "min_step", "max", "max_step"),
    *("nonfinite", "nonfinite_step", "nonfinite_end"),
)


def read_series(paths: RunPaths, patterns: Iterable[str] = ()) -> tuple[Series, ...]:
    """All series of a run whose names match, in the order in which they were first logged.

    From its view; from the ranks' files where it has none, or shows only a part of the names.
    """
    patterns = list(patterns)
    document: Mapping[str, Any] = (read_json(paths.view) or {}).get("logged") or {}
    if not document or document.get("more"):
        document = _from_files(paths).document(everything=True)
    return tuple(series for series in shown_series(document) if matches_any(series.name, patterns))


def leading_series(paths: RunPaths) -> tuple[tuple[Series, ...], int]:
    """Those that a run's view shows, and how many it leaves out: quick however long the run.

    Of a run whose view has none: all, from the ranks' files.
    """
    document: Mapping[str, Any] = (read_json(paths.view) or {}).get("logged") or {}
    if not document:
        document = _from_files(paths).document(everything=True)
    count = document.get("more_count")
    return shown_series(document), count if type(count) is int else 0


def shown_series(document: Mapping[str, Any]) -> tuple[Series, ...]:
    """The series of a view's member "logged"."""
    tables: list[dict[str, Any]] = document.get("tables") or []
    series: list[dict[str, Any]] = document.get("series") or []
    return tuple(_series(entry, tables[int(entry["table"])]) for entry in series)


def _series(facts: Mapping[str, Any], table: Mapping[str, Any]) -> Series:
    mean: list[Number] = facts["mean"]
    # Where another name of the table was logged and this one was not, there is no gap.
    broken = bool(facts.get("nonfinite"))
    rows = [at for at, value in enumerate(mean) if value is not None or broken]

    def column(values: Sequence[Number] | None) -> tuple[Number, ...]:
        return tuple(values[at] for at in rows) if values else ()

    facts_kept = {name: facts[name] for name in _FACTS if name in facts}
    return Series(
        name=facts["name"],
        figure=facts.get("figure") or facts["name"],
        group=group_of(facts["name"]),
        is_validation_loss=is_validation_loss(facts["name"]),
        better=better(facts["name"]),
        step=column(table["step"]),
        time=column(table["time"]),
        mean=column(mean),
        low=column(facts.get("low")),
        high=column(facts.get("high")),
        stride=table["stride"],
        **facts_kept,
    )


def _from_files(paths: RunPaths) -> SeriesTables:
    ranks = rank_count(paths, (read_run(paths) or RunRecord()).processes)
    stream, tables = LoggedStream(paths, range(ranks)), SeriesTables()
    while True:
        for row in stream.read():
            tables.add(row)
        if stream.at_end:
            return tables


def figures(series: Iterable[Series]) -> dict[str, list[Series]]:
    """Title -> the series that are drawn together; validation losses stand with the loss."""
    drawn: dict[str, list[Series]] = {}
    for entry in series:
        if not entry.is_validation_loss:
            drawn.setdefault(entry.figure, []).append(entry)
    return drawn
