"""What report.html says of the prediction: each term beside what was measured, and the reason."""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import Any

from workbench.observe.prediction_error.terms import PredictionError, PredictionTerm
from workbench.units import format_ratio

STYLE = """
.gap td.bar{width:34%;min-width:120px;padding-top:9px}.gap td.bar i{display:block;height:5px;
border-radius:2px;margin-bottom:3px;background:var(--c0)}.gap td.bar i.p{background:var(--mute);
opacity:.6}.gap tr.cause td:first-child{padding-left:16px;color:var(--mute)}
.gap tr.off td.ratio{color:var(--c1);font-weight:600}.gap td.n{white-space:nowrap}
@media(max-width:640px){.gap td.bar{display:none}}
"""


def prediction_section(
    gap: PredictionError, run: Mapping[str, Any], view: Mapping[str, Any], exit_code: Any
) -> str:
    """The heading, why they differ, the table, and what the times rest on."""
    largest = max((_larger(row) for row in gap.rows if row.group == "time"), default=0.0)
    rows = [_row(one, largest if one.group == "cause" else _larger(one)) for one in gap.rows]
    loss = " → ".join(_number(view.get(name)) for name in ("loss_first", "loss_last"))
    rows += [
        _facts("loss, first → last", "n/a", loss),
        _facts("optimizer steps", _count(run.get("steps_total")), _count(view.get("steps"))),
        _facts("processes", _count(run.get("processes")), _count(view.get("world_size"))),
        _facts("exit code", "0", _count(exit_code)),
    ]
    head = (
        "<tr><th></th><th>predicted or requested</th><th>measured</th><th>ratio</th><th></th></tr>"
    )
    why = f"<p>{html.escape(gap.explanation)}</p>" if gap.explanation else ""
    return (
        f'<h2>Predicted and measured</h2>{why}<table class="gap">{head}{"".join(rows)}</table>'
        f'<p class="mute">{html.escape(_basis(gap))}</p>'
    )


def _basis(gap: PredictionError) -> str:
    """What both columns of times are."""
    steps = f"Measured times are medians over {gap.steady_steps:,} steady steps."
    if gap.source is None:
        return steps
    return f"{steps} Predicted times: {gap.source}. Grey bars predicted, blue ones measured."


def _row(row: PredictionTerm, largest: float) -> str:
    off = "off" if row.within is False else ""
    predicted = html.escape(row.text(row.predicted))
    if row.low is not None and row.high is not None:
        ends = f"{row.text(row.low)} to {row.text(row.high)}"
        predicted += f"<br><small>{html.escape(ends)}</small>"
    return (
        f'<tr class="{row.group if row.group == "cause" else ""} {off}">'
        f'<td>{html.escape(row.what)}</td><td class="n">{predicted}</td>'
        f'<td class="n">{html.escape(row.text(row.measured))}</td>'
        f'<td class="n ratio">{format_ratio(row.measured, row.predicted)}</td>'
        f'<td class="bar">{_bar("p", row.predicted, largest)}'
        f"{_bar('m', row.measured, largest)}</td></tr>"
    )


def _bar(css: str, value: float | None, largest: float) -> str:
    if value is None or largest <= 0:
        return ""
    return f'<i class="{css}" style="width:{max(0.5, min(100.0, 100 * value / largest)):.1f}%"></i>'


def _larger(row: PredictionTerm) -> float:
    return max(row.predicted or 0.0, row.measured or 0.0)


def _facts(what: str, asked: str, found: str) -> str:
    cells = "".join(f'<td class="n">{html.escape(one)}</td>' for one in (asked, found))
    return f"<tr><td>{what}</td>{cells}<td></td><td></td></tr>"


def _number(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.4g}"


def _count(value: int | None) -> str:
    return "n/a" if value is None else str(value)
