"""Tables of studies for people."""

from __future__ import annotations

from collections.abc import Sequence

from rich.markup import escape
from rich.table import Table

from workbench.cli.tables import number
from workbench.compare.scaling_study import ScalingStudy
from workbench.compare.studies.compression import Compression
from workbench.compare.studies.rented import RentedPoint
from workbench.compare.studies.scaling_curves import Curve, CurvePoint
from workbench.compare.studies.step_split import PARTS
from workbench.compare.studies.trial import TrialResult
from workbench.compare.studies.tuning import Tuning
from workbench.units import format_bytes, format_column, format_count, format_seconds

WORDS = {
    "compute": "compute",
    "communication": "exchange",
    "waiting": "slowest rank",
    "data": "data",
}


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for place, column in enumerate(columns):
        table.add_column(column, justify="right" if place else "left")
    return table


def curve_table(curve: Curve, study: ScalingStudy) -> Table:
    """One mode: step, efficiency, and by cause what the rest of the time goes to."""
    where = "GPUs" if study.cores is None else "ranks"
    causes = [f"lost: {WORDS[name]}" for name in PARTS]
    title = f"{curve.mode} scaling of {escape(study.target)}"
    table = _table(title, where, "step", "from", "to", "efficiency", *causes, "")
    for point, times in zip(curve.points, _times(curve.points), strict=True):
        table.add_row(
            str(point.ranks),
            *times,
            f"{point.efficiency:.0%}",
            *(f"{point.lost[name]:.0%}" for name in PARTS),
            "measured" if point.measured else "[yellow]predicted[/]",
        )
    return table


def _times(points: Sequence[CurvePoint] | Sequence[RentedPoint]) -> list[list[str]]:
    """Step, and the ends of its range, of each point: all in one unit."""
    each = [(point.step_seconds, point.low_seconds, point.high_seconds) for point in points]
    texts = format_column(seconds for three in each for seconds in three)
    return [texts[at : at + 3] for at in range(0, len(texts), 3)]


def rented_table(points: Sequence[RentedPoint], gpu: str) -> Table:
    """The same work on a rented cluster."""
    table = _table(f"weak scaling on {escape(gpu)}", "GPUs", "step", "from", "to", "efficiency", "")
    for point, times in zip(points, _times(points), strict=True):
        ratio = point.measured_ratio
        basis = "catalog" if ratio is None else f"catalog x {ratio:.2f} measured here"
        table.add_row(
            str(point.gpus),
            *times,
            f"{point.efficiency:.0%}",
            basis,
        )
    return table


def tuning_table(tuning: Tuning) -> Table:
    """One line a value; the chosen one is marked."""
    unit = "steps/s" if tuning.kind == "workers" else "samples/s"
    table = _table(tuning.study, tuning.kind, unit, "tokens/s", "step", "data wait", "memory", "")
    steps = format_column(result.step_seconds for result in tuning.results)
    for result, rate, step in zip(tuning.results, tuning.rates, steps, strict=True):
        table.add_row(
            str(result.value),
            number(rate),
            format_count(result.tokens_per_second),
            step,
            format_seconds(_data_wait(result)),
            format_bytes(result.peak_memory_bytes),
            "[green]take this[/]" if result.value == tuning.best else _trouble(result),
        )
    return table


def compression_table(compression: Compression) -> Table:
    """One line a variant: what it sends, what a step takes, what the loss pays."""
    plain = compression.plain
    table = _table(
        compression.study, "variant", "bytes/step", "of plain", "step", "loss", "added", ""
    )
    steps = format_column(result.step_seconds for result in compression.results)
    for result, step in zip(compression.results, steps, strict=True):
        sent, base = result.sent_bytes, plain.sent_bytes if plain else None
        loss = plain.loss if plain else None
        table.add_row(
            escape(str(result.value)),
            format_bytes(sent),
            f"{sent / base:.1%}" if sent is not None and base else "n/a",
            step,
            number(result.loss),
            f"{result.loss - loss:+.3f}" if result.loss is not None and loss is not None else "n/a",
            _trouble(result),
        )
    return table


def _trouble(result: TrialResult) -> str:
    return "" if result.good else f"[yellow]{result.outcome}[/]: {escape(result.problem or '')}"


def _data_wait(result: TrialResult) -> float | None:
    waits = sorted(split.data for split in result.splits)
    return waits[len(waits) // 2] if waits else None
